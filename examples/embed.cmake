# Turn a text file into a C file: cmake -DFROM=page.html -DTO=page.c -DNAME=page_html -P embed.cmake
file(READ ${FROM} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${TO} "#include <stddef.h>
extern const unsigned char ${NAME}[];
extern const size_t ${NAME}_bytes;
const unsigned char ${NAME}[] = {
${hex}
};
const size_t ${NAME}_bytes = sizeof(${NAME});
")
