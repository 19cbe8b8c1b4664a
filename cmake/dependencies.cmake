# Everything that the project links, all of it packaged by Debian 12.

find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)  # module mode: Debian ships no CONFIG package
find_package(absl CONFIG REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED COMPONENTS core)
find_package(civetweb CONFIG REQUIRED COMPONENTS civetweb-cpp)
find_package(nlohmann_json CONFIG REQUIRED)
find_package(OpenSSL REQUIRED COMPONENTS Crypto)  # which gRPC links anyway
find_package(SQLite3 REQUIRED)
find_package(CURL REQUIRED)
find_package(EXPAT REQUIRED)
find_package(ZLIB REQUIRED)
find_package(GTest CONFIG REQUIRED)
find_package(benchmark CONFIG REQUIRED)

# Debian's dnnl-config.cmake requires OpenCL, which its package does not depend
# on, so oneDNN is found by its library and header.
find_library(DNNL_LIBRARY dnnl REQUIRED)
find_path(DNNL_INCLUDE_DIR oneapi/dnnl/dnnl.hpp REQUIRED)
add_library(gshard_dnnl INTERFACE)
target_include_directories(gshard_dnnl SYSTEM INTERFACE ${DNNL_INCLUDE_DIR})
target_link_libraries(gshard_dnnl INTERFACE ${DNNL_LIBRARY})

# Gloo comes without a CMake package.
find_library(GLOO_LIBRARY gloo REQUIRED)
find_path(GLOO_INCLUDE_DIR gloo/context.h REQUIRED)
add_library(gshard_gloo INTERFACE)
target_include_directories(gshard_gloo SYSTEM INTERFACE ${GLOO_INCLUDE_DIR})
target_link_libraries(gshard_gloo INTERFACE ${GLOO_LIBRARY})
