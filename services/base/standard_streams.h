// Standard input, output and error that the caller has closed.

#ifndef SERVICES_BASE_STANDARD_STREAMS_H_
#define SERVICES_BASE_STANDARD_STREAMS_H_

namespace gshard {

// Takes the descriptors 0 to 2 where they are closed, else the next file or
// socket that is opened gets their numbers, and is read, polled or written as
// if it were them. Reading and writing them still fails. Call it first in
// main().
void TakeClosedStreams();

}  // namespace gshard

#endif  // SERVICES_BASE_STANDARD_STREAMS_H_
