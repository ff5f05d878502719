# step(COMMAND...): runs a command whose output is then in step_output. One that fails ends the script.
function(step)
    execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE out ERROR_VARIABLE out)
    if(NOT result EQUAL 0)
        list(JOIN ARGN " " command)
        message(FATAL_ERROR "${command}\nended with ${result}:\n${out}")
    endif()
    set(step_output "${out}" PARENT_SCOPE)
endfunction()
