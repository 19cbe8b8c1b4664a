#include <string>
#include <vector>

#include "services/coordinator/coordinator_process.h"

int main(int argc, char** argv) {
  return gshard::RunCoordinator(
      std::vector<std::string>(argv + 1, argv + argc));
}
