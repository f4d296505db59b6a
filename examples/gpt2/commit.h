// The commit that the program was built from; an empty text if it is not known. In the program alone, so that a commit
// has nothing else linked again.
#pragma once

namespace ghostshard::gpt2 {

const char* program_commit();

}  // namespace ghostshard::gpt2
