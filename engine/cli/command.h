/*
 * The program's commands. Each takes the words after its own name and returns the exit status.
 * Given
 * --help it prints its own help to stdout and returns 0.
 */
#ifndef TESSERA_CLI_COMMAND_H
#define TESSERA_CLI_COMMAND_H

int tess__command_train(int argc, char **argv);
int tess__command_generate(int argc, char **argv);
int tess__command_sweep(int argc, char **argv);
int tess__command_diff(int argc, char **argv);
int tess__command_compare(int argc, char **argv);
int tess__command_scaling(int argc, char **argv);
int tess__command_tune_batch(int argc, char **argv);
int tess__command_report(int argc, char **argv);
int tess__command_top(int argc, char **argv);
int tess__command_topo(int argc, char **argv);
int tess__command_bench_comm(int argc, char **argv);
int tess__command_bench_gpu(int argc, char **argv);
int tess__command_bench_kernels(int argc, char **argv);
int tess__command_bench_step(int argc, char **argv);

#endif
