# Completion for bash: commands, options, their values; else files.
_tessera()
{
    local IFS=$'\n' word=${COMP_WORDS[COMP_CWORD]}
    # bash makes a word of its own of each '='.
    local -a words=() given=("${COMP_WORDS[@]:1:COMP_CWORD}")
    local i
    for ((i = 0; i < ${#given[@]}; i++)); do
        if [[ ${given[i]} == = && ${#words[@]} -gt 0 ]]; then
            words[-1]+="=${given[i + 1]-}"
            ((++i))
        else
            words+=("${given[i]}")
        fi
    done
    [[ $word == = ]] && word=
    # shellcheck disable=SC2207
    COMPREPLY=($("${COMP_WORDS[0]}" complete "${words[@]}" 2>/dev/null | cut -f1 | sed 's/^--[^=]*=//'))
}
complete -o default -F _tessera tessera
