// A write one number beyond a part of a workspace: `make test-sanitize` expects the address sanitizer to stop it.
#include <vector>

#define RELATTN_SET divided
#include "workspace.h"

int main(int count, char**) {
  std::vector<float> memory(1000);
  divided::Workspace workspace(memory.data());
  workspace.next(10), workspace.next(10);
  divided::clear(memory.data(), workspace.floats());
  workspace = divided::Workspace(memory.data());
  float *first = workspace.next(10), *second = workspace.next(10);
  for (int n = 0; n < 10; n++) first[n] = second[n] = 1.0f;
  first[9 + count] = 2.0f;  // count is 1
  return 0;
}
