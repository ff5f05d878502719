# Completion for fish: commands, options, their values; else files.
complete -c tessera -a '(tessera complete (commandline -opc)[2..] (commandline -ct | string collect -a) 2>/dev/null)'
