# What object files define in namespaces detent and xsimd, read with nm.
#
#   cmake -DNM=nm -DCHECK=no_strong -DOBJECTS=A.o -P symbols.cmake
#     fails if one is strong: two translation units that define it could not be linked
#   cmake -DNM=nm -DCHECK=disjoint -DOBJECTS=A.o,B.o -P symbols.cmake
#     fails if both define one: the linker would merge functions compiled for different processors

cmake_minimum_required(VERSION 3.25)
string(REPLACE "," ";" OBJECTS "${OBJECTS}")

# The names `object` defines with one of the symbol types in `types`.
function(defined_names object types out)
  execute_process(COMMAND ${NM} --defined-only ${object} OUTPUT_VARIABLE mangled COMMAND_ERROR_IS_FATAL ANY)
  string(REGEX MATCHALL "[0-9a-f]+ [${types}] _Z[^\n]*" lines "${mangled}")
  set(names)
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^[0-9a-f]+ . " "" name "${line}")
    # Also their vtables, type information, local variables and guards. A name of std:: that merely has
    # arguments of theirs does not begin like this.
    if(name MATCHES "^_Z(T[VIST])?(GV)?Z*N[KVRO]*(6detent|5xsimd)")
      list(APPEND names "${name}")
    endif()
  endforeach()
  set(${out} "${names}" PARENT_SCOPE)
endfunction()

function(complain what names)
  execute_process(COMMAND c++filt ${names} OUTPUT_VARIABLE readable RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    string(REPLACE ";" "\n" readable "${names}")
  endif()
  message(FATAL_ERROR "${what}:\n${readable}")
endfunction()

if(CHECK STREQUAL "no_strong")
  foreach(object IN LISTS OBJECTS)
    defined_names(${object} "VWu" weak)
    defined_names(${object} "ABCDGRST" strong)
    if(strong)
      complain("strong symbols in ${object}" "${strong}")
    endif()
    list(LENGTH weak count)
    if(count EQUAL 0)
      message(FATAL_ERROR "no symbols of detent found in ${object}: does this check still work?")
    endif()
    message(STATUS "${object}: ${count} weak symbols, none strong")
  endforeach()
else()
  list(GET OBJECTS 0 first)
  list(GET OBJECTS 1 second)
  defined_names(${first} "A-Zu" first_names)
  defined_names(${second} "A-Zu" second_names)
  set(common)
  foreach(name IN LISTS first_names)
    if(name IN_LIST second_names)
      list(APPEND common "${name}")
    endif()
  endforeach()
  list(LENGTH first_names first_count)
  list(LENGTH second_names second_count)
  if(common)
    complain("defined by both ${first} and ${second}" "${common}")
  endif()
  if(first_count EQUAL 0 OR second_count EQUAL 0)
    message(FATAL_ERROR "no symbols of detent found: does this check still work?")
  endif()
  message(STATUS "${first_count} and ${second_count} symbols, none in common")
endif()
