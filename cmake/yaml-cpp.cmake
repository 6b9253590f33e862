# Sets yaml_cpp to the target of yaml-cpp, whose name is another one since version 0.8.
find_package(yaml-cpp REQUIRED)
set(yaml_cpp yaml-cpp)
if(TARGET yaml-cpp::yaml-cpp)
  set(yaml_cpp yaml-cpp::yaml-cpp)
endif()
