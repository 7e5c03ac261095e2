# Copies of a few of llama.cpp's Jinja sources with calls of lm_template_step in them: the engine has no limits of its own.
# Each anchor is a line of the pinned source; one that is missing leaves that file as it is, with a warning.

set(LIMIT_DIR "${CMAKE_CURRENT_BINARY_DIR}/jinja")
set(LIMIT_SOURCE "${LLAMA_DIR}/common/jinja")

# limit_steps(file PATTERN REPLACEMENT ...): regular expressions as CMake has them.
function (limit_steps name)
    file(READ "${LIMIT_SOURCE}/${name}" text)
    # CMake takes these for its own.
    string(REPLACE ";" "@SEMICOLON@" text "${text}")
    string(REPLACE "[" "@OPEN@" text "${text}")
    string(REPLACE "]" "@CLOSE@" text "${text}")
    set(rest ${ARGN})
    while (rest)
        list(POP_FRONT rest pattern replacement)
        string(REGEX MATCH "${pattern}" found "${text}")
        if (NOT found)
            message(WARNING "chat templates are not limited: ${name} has no '${pattern}'")
            return()
        endif()
        string(REGEX REPLACE "${pattern}" "${replacement}" text "${text}")
    endwhile()
    string(REGEX REPLACE "#include \"(lexer|parser|runtime|string|utils|value)\\.h\"" "#include \"jinja/\\1.h\"" text "${text}")
    set(text "#include \"template_limit.h\"\n${text}")
    string(REPLACE "@CLOSE@" "]" text "${text}")
    string(REPLACE "@OPEN@" "[" text "${text}")
    string(REPLACE "@SEMICOLON@" ";" text "${text}")
    file(CONFIGURE OUTPUT "${LIMIT_DIR}/${name}" CONTENT "@text@" @ONLY)
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS "${LIMIT_SOURCE}/${name}")
    get_target_property(sources llama-common SOURCES)
    list(REMOVE_ITEM sources "jinja/${name}")
    set_property(TARGET llama-common PROPERTY SOURCES ${sources} "${LIMIT_DIR}/${name}")
endfunction()

limit_steps(parser.cpp
    "(statement_ptr parse_[a-z_]+\\([^)]*\\) {)" "\\1 lm_template_step(1)@SEMICOLON@")
limit_steps(runtime.cpp
    "return execute_impl\\(ctx\\)"
    "value result = execute_impl(ctx)@SEMICOLON@ \
lm_template_step(1 + (is_val<value_string>(result) ? cast_val<value_string>(result)->val_str.length() / 64 : 0) + \
(is_val<value_array>(result) ? result->as_array().size() / 8 : 0))@SEMICOLON@ return result"
    "(i < filtered_items.size\\(\\)@SEMICOLON@ i\\+\\+\\) {)" "\\1 lm_template_step(8)@SEMICOLON@")
limit_steps(string.cpp
    "(string & string::append\\(const string & other\\) {)" "\\1 lm_template_step(4 * other.parts.size())@SEMICOLON@")
limit_steps(value.cpp
    "(out->push_back\\(mk_val<value_int>\\(i\\)\\))" "lm_template_step(4)@SEMICOLON@ \\1"
    "(pos \\+= new_str.length\\(\\)@SEMICOLON@)" "\\1 lm_template_step(1 + str.length() / 256)@SEMICOLON@"
    "(new_res.reserve)" "lm_template_step((str.length() + 1) * (new_str.length() + 1) / 64)@SEMICOLON@ \\1")
target_sources(llama-common PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}/template_limit.cpp")
target_include_directories(llama-common PRIVATE "${CMAKE_CURRENT_SOURCE_DIR}")
