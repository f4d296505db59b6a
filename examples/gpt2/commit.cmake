# Writes OUTPUT, a source with the commit that ROOT is at, unless it holds that already. Without git: no commit.
#   cmake -DROOT=... -DOUTPUT=... -P commit.cmake
set(commit "")
find_program(git git)
if(git AND EXISTS "${ROOT}/.git")
  execute_process(COMMAND "${git}" -C "${ROOT}" rev-parse HEAD OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE
    ERROR_QUIET)
  execute_process(COMMAND "${git}" -C "${ROOT}" status --porcelain --untracked-files=no -- accountant kernels fsdp dp examples
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(commit AND changes)
    string(APPEND commit " with changes")
  endif()
endif()
file(CONFIGURE OUTPUT "${OUTPUT}" @ONLY CONTENT
  "#include \"examples/gpt2/commit.h\"\n\nnamespace ghostshard::gpt2 {\n\nconst char* program_commit() { return \"@commit@\"; }\n\n}  // namespace ghostshard::gpt2\n")
