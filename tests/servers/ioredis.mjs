// SPDX-License-Identifier: MIT
//
// ioredis, the client of npm, against point-server: node ioredis.mjs PORT FILE. Needs ioredis in node_modules beside it.
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';

const Redis = createRequire(`${process.cwd()}/`)('ioredis');
const [port, path] = [Number(process.argv[2]), process.argv[3]];
const file = readFileSync(path);
const page = (n) => file.subarray(n * 4096, Math.min((n + 1) * 4096, file.length));
const pages = Math.ceil(file.length / 4096);
let passed = 0;
let failed = 0;

function check(right, text) {
    console.log(`${right ? 'pass' : 'fail'}: ioredis: ${text}`);
    right ? passed++ : failed++;
}

async function refused(promise) {
    try {
        await promise;
        return '';
    } catch (error) {
        return error.message;
    }
}

setTimeout(() => {
    console.log('fail: ioredis: not finished after 30 seconds');
    process.exit(1);
}, 30000).unref();

// as it comes: checks INFO before it believes that the server is ready; sets its name
const redis = new Redis({ port, connectionName: 'tester', retryStrategy: () => null });
redis.on('error', (error) => check(false, error.message));
check((await redis.ping()) === 'PONG', 'ping');
check((await redis.client('GETNAME')) === 'tester', 'its name was set');
check((await redis.getBuffer('key:5')).equals(page(5)), 'getBuffer');
check((await redis.get('key:nothing')) === null, 'get of nothing');
check((await redis.strlen(String(pages - 1))) === page(pages - 1).length, 'strlen of the last page');
const all = await Promise.all([...Array(pages + 1).keys()].map((n) => redis.getBuffer(`k:${n}`)));
check(all.every((value, n) => (n < pages ? value.equals(page(n)) : value === null)), `all ${pages} pages at once`);
const several = await redis.mgetBuffer('1', 'x', '2');
check(several[0].equals(page(1)) && several[1] === null && several[2].equals(page(2)), 'mgetBuffer');
const pipeline = await redis.pipeline().getBuffer('3').exists('3', 'x').dbsize().set('3', 'x').exec();
check(pipeline[0][1].equals(page(3)) && pipeline[1][1] === 1 && pipeline[2][1] === pages, 'a pipeline');
check(/READONLY/.test(pipeline[3][0]?.message), 'a write is refused');
check(/unknown command/.test(await refused(redis.call('NOSUCH', 'a'))), 'an unknown command is refused');
check((await redis.getrangeBuffer('7', 10, 19)).equals(page(7).subarray(10, 20)), 'getrangeBuffer');
check(/redis_version/.test(await redis.info()), 'info');
check((await redis.quit()) === 'OK', 'quit');
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed ? 1 : 0);
