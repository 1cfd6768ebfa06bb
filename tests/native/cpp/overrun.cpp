// A write one number beyond a part of a workspace: `make test-sanitize` expects the address sanitizer to stop it.
#include <vector>

#define RELATTN_SET divided
#include "workspace.h"

int main(int count, char**) {
  std::vector<float> memory(1000);
  float* at = memory.data();
  float* first = divided::next_part(at, 10);
  float* second = divided::next_part(at, 10);
  divided::clear(memory.data(), at - memory.data());
  at = memory.data();
  first = divided::next_part(at, 10), second = divided::next_part(at, 10);
  for (int n = 0; n < 10; n++) first[n] = second[n] = 1.0f;
  first[9 + count] = 2.0f;  // count is 1
  return 0;
}
