/* The tables of a run's own options. config.c and config_mesh.c check them together. */
#include "config/config.h"

#define CONFIG_FIELD(member) offsetof(struct tess_run_options, member)

#define TESS_STRATEGY(name, built, hint)
#define TESS_STRATEGY_DEFAULT(name, built, hint) #name
const char tess_config_default_strategy[] =
#include "strategies/list.h"
    ;

const struct tess_option tess_run_option_table[] = {
    TESS_ROW_TOPIC("layout"),
    {"model", TESS_OPTION_STRING, CONFIG_FIELD(model), "mlp", 0, 0, NULL,
     "model to train, its own options begin with its name; or a folder with config.json, as "
     "Hugging "
     "Face's libraries write it: the model that is described there, with the folder's weights, if "
     "there are any, unless --init says otherwise"},
    {"strategy", TESS_OPTION_STRING, CONFIG_FIELD(strategy), tess_config_default_strategy, 0, 0,
     NULL,
     "how a step is spread over the ranks; several are joined by '+', one for each axis of the "
     "mesh (data, tensor, stage); tessera help lists them; options of each begin with its name"},
    {"mesh", TESS_OPTION_STRING, CONFIG_FIELD(mesh), "", 0, 0, NULL,
     "ranks along each axis, as data=2,tensor=2,stage=2; axes that are left out follow from "
     "--ranks"},
    {"ranks", TESS_OPTION_INT, CONFIG_FIELD(ranks), "2", 1, TESS_RANKS_MAX, NULL,
     "ranks to start; --explain plans them without starting any"},
    {"recompute", TESS_OPTION_STRING, CONFIG_FIELD(recompute), "none", 0, 0, NULL,
     "activations recomputed in backward instead of kept: none, selective (cheap ones), full (all "
     "of a unit but its input), every:K (full in one unit of K)"},
    TESS_ROW_TOPIC("precision"),
    {"precision", TESS_OPTION_CHOICE, CONFIG_FIELD(precision), "f32", 0, 0, "f32|bf16|f16",
     "type of activations and parameters in use; bf16 and f16 keep f32 masters and f32 gradients"},
    {"f32-ops", TESS_OPTION_STRING, CONFIG_FIELD(f32_ops), "", 0, 0, NULL,
     "operations whose operands are widened to f32 and multiplied there: linear, conv2d or both, "
     "joined by commas"},
    {"f32-conv", TESS_OPTION_CHOICE, CONFIG_FIELD(f32_conv), "auto", 0, 0, "direct|winograd|auto",
     "how CPU ranks compute 3x3 convolutions of stride 1 in f32: direct sums, or Winograd's "
     "F(4x4), a quarter of the products with more rounding; auto: winograd for 16 to 241 channels"},
    {"reduce-dtype", TESS_OPTION_CHOICE, CONFIG_FIELD(reduce_dtype), "f32", 0, 0, "f32|bf16|f16",
     "type in which gradients travel between ranks; added in f32 and rounded once"},
    {"loss-scale", TESS_OPTION_STRING, CONFIG_FIELD(loss_scale), "auto", 0, 0, NULL,
     "factor on the loss that keeps small f16 gradients from becoming zero: dynamic (65536 at "
     "first, doubled after good steps, halved when a gradient is not finite, whose step is "
     "skipped), dynamic:FIRST, static:K or off; auto: dynamic for f16, off otherwise"},
    {"loss-scale-interval", TESS_OPTION_INT, CONFIG_FIELD(loss_scale_interval), "2000", 1, 1e9,
     NULL, "good steps in a row after which a dynamic loss scale is doubled"},
    {"master-weights", TESS_OPTION_BOOL, CONFIG_FIELD(master), "on", 0, 0, NULL,
     "keep an f32 copy beside bf16 or f16 parameters; off saves its memory and needs --rounding "
     "stochastic"},
    {"rounding", TESS_OPTION_CHOICE, CONFIG_FIELD(rounding), "nearest", 0, 0, "nearest|stochastic",
     "how updated parameters become bf16 or f16: stochastic rounds up or down at random, keyed by "
     "seed, step and element, the same on every layout"},
    {"fp8", TESS_OPTION_CHOICE, CONFIG_FIELD(fp8), "off", 0, 0, "off|now|history",
     "multiply linear layers of bf16 and f16 runs in 8 bits, each tensor scaled by its greatest "
     "element: now, of the tensor itself; history, of the latest 16 calls"},
    TESS_ROW_TOPIC("device"),
    {"device", TESS_OPTION_CHOICE, CONFIG_FIELD(device), "auto", 0, 0, "auto|cpu|cuda",
     "where ranks compute: cpu, this machine's processor; cuda, NVIDIA GPUs, ranks distributed "
     "over the visible ones; auto: cuda where there is one and --kernel is not given"},
    {"kernel", TESS_OPTION_STRING, CONFIG_FIELD(kernel), "", 0, 0, NULL,
     "kernel backend; empty chooses the fastest that is built for the device"},
    {"comm", TESS_OPTION_STRING, CONFIG_FIELD(comm), "auto", 0, 0, NULL,
     "communicator, how ranks exchange data: one of the list of tessera help, or auto: nccl "
     "between devices unless ranks share one or are threads whose devices reach each other; on the "
     "host local; among processes that another program started mpi under mpirun where it is "
     "installed, else tcp"},
    {"peak-tflops", TESS_OPTION_REAL, CONFIG_FIELD(peak_tflops), "0", 0, 1e6, NULL,
     "best product measured on a device (tessera bench gpu), in 10^12 operations per second: "
     "utilisation is then given against it too; 0: not known"},
    TESS_ROW_TOPIC("data"),
    {"data", TESS_OPTION_STRING, CONFIG_FIELD(data), "/usr/share/datasets/fashion-mnist", 0, 0,
     NULL,
     "images: folder with the four IDX files, plain or .gz; text: files, a comma list or a "
     "pattern, .bin shards of tokens, or the word text for stories that a grammar makes; synthetic "
     "generates data"},
    {"synthetic-rows", TESS_OPTION_INT, CONFIG_FIELD(synthetic_rows), "8192", 1, 1 << 24, NULL,
     "training samples of --data synthetic; a quarter as many are for validation"},
    TESS_ROW_TOPIC("saving"),
    {"run", TESS_OPTION_STRING, CONFIG_FIELD(run), "", 0, 0, NULL,
     "folder for the run's files (metrics.jsonl, weights.safetensors, checkpoints); empty writes "
     "none. One run at a time; one that has a run needs --resume or --overwrite. Also --run-dir, "
     "under torchrun, which refuses --run"},
    {"init", TESS_OPTION_STRING, CONFIG_FIELD(init), "", 0, 0, NULL,
     "first values: a safetensors file; a run's folder (its newest checkpoint) or a checkpoint's; "
     "a folder with model.safetensors or model.safetensors.index.json, whose config.json, where "
     "there is one, must describe the run's model. The optimizer begins anew, at step 0; empty or "
     "none draws them from --seed"},
    {"save-weights", TESS_OPTION_BOOL, CONFIG_FIELD(save_weights), "on", 0, 0, NULL,
     "write the weights to weights.safetensors in the run folder at the end"},
    {"save-every", TESS_OPTION_STRING, CONFIG_FIELD(save_every), "10min", 0, 0, NULL,
     "checkpoints of all state in the run folder: so many steps apart (100), or so much time (90s, "
     "10min, 2h), and at the end; off writes none"},
    {"keep", TESS_OPTION_INT, CONFIG_FIELD(keep), "2", 0, 1e6, NULL,
     "newest checkpoints that stay; 0: all"},
    {"save-memory", TESS_OPTION_STRING, CONFIG_FIELD(save_memory), "all", 0, 0, NULL,
     "memory of a rank for the copy of the state that is written while steps go on: all that it "
     "needs, or a size (2GiB), and a step waits until the rest is written; 0: until all is"},
    {"save-bandwidth", TESS_OPTION_STRING, CONFIG_FIELD(save_bandwidth), "0", 0, 0, NULL,
     "bytes that a rank writes in a second at most, as a size (200MiB); 0: no limit"},
    {"redundancy", TESS_OPTION_STRING, CONFIG_FIELD(redundancy), "off", 0, 0, NULL,
     "memory: with --restarts, copy all of the state to memory of the hosts after every step, from "
     "which the ranks are started again; memory:K: after every K steps"},
    {"save-required", TESS_OPTION_BOOL, CONFIG_FIELD(save_required), "off", 0, 0, NULL,
     "a checkpoint that cannot be written ends the run; off: a warning, and training goes on"},
    {"resume", TESS_OPTION_BOOL, CONFIG_FIELD(resume), "off", 0, 0, NULL,
     "continue from the newest checkpoint of --run, on any number of ranks and under any strategy: "
     "options that decide on the run's numbers are the checkpoint's"},
    {"overwrite", TESS_OPTION_BOOL, CONFIG_FIELD(overwrite), "off", 0, 0, NULL,
     "begin anew in a folder that has a run, which is then lost"},
    TESS_ROW_TOPIC("steps"),
    {"epochs", TESS_OPTION_REAL, CONFIG_FIELD(epochs), "1", 0, 1e6, NULL,
     "passes over the training data; fractions are allowed"},
    {"steps", TESS_OPTION_INT, CONFIG_FIELD(steps), "0", 0, 1e12, NULL,
     "optimizer steps; 0: by --epochs"},
    {"batch-size", TESS_OPTION_INT, CONFIG_FIELD(batch_size), "128", 1, TESS_CONFIG_BATCH_MAX, NULL,
     "samples (images, sequences) per optimizer step, over all ranks"},
    {"batch-per-rank", TESS_OPTION_INT, CONFIG_FIELD(batch_per_rank), "0", 0, TESS_CONFIG_BATCH_MAX,
     NULL,
     "samples per optimizer step and rank of the data axis: sets --batch-size to this times these "
     "ranks; 0: not used"},
    {"grid", TESS_OPTION_INT, CONFIG_FIELD(grid), "0", 0, 1 << 20, NULL,
     "canonical micro-batches per step; runs with the same grid give the same bits; 0: ranks x "
     "accumulate"},
    {"accumulate", TESS_OPTION_INT, CONFIG_FIELD(accumulate), "1", 1, 1 << 16, NULL,
     "micro-batches a rank computes one after the other in each step"},
    {"seed", TESS_OPTION_INT, CONFIG_FIELD(seed), "1", 0, 9e15, NULL,
     "of initial parameters, shuffles, augmentation and dropout"},
    {"reduce", TESS_OPTION_CHOICE, CONFIG_FIELD(reduce), "canonical", 0, 0, "canonical|fast",
     "order of sums: canonical, one tree, gives the same bits on every layout; fast leaves sums "
     "over ranks to the communicator (on one host it keeps the tree) and adds micro-batches one "
     "after the other, with two gradients in memory where the tree keeps up to log2(accumulate) + "
     "1"},
    {"buffers", TESS_OPTION_CHOICE, CONFIG_FIELD(buffers), "combine", 0, 0, "combine|broadcast",
     "running averages from the statistics of all ranks, or of rank 0 broadcast"},
    TESS_ROW_TOPIC("processes"),
    {"threads", TESS_OPTION_INT, CONFIG_FIELD(threads), "0", 0, TESS_THREADS_MAX, NULL,
     "threads of each rank that its kernels share, with the same bits for any number; 0: as many "
     "as cores for each rank; where another program started the ranks SLURM_CPUS_PER_TASK, or 1"},
    {"timeout", TESS_OPTION_REAL, CONFIG_FIELD(timeout), "60", 0.1, 86400, NULL,
     "seconds a collective may wait for another rank; a device may take ten times as long for what "
     "it was given"},
    {"log-every", TESS_OPTION_INT, CONFIG_FIELD(log_every), "0", 0, 1e9, NULL,
     "steps between lines of the log and of metrics.jsonl; 0: ten lines an epoch, a thousand of "
     "metrics.jsonl a run"},
    {"evaluate", TESS_OPTION_BOOL, CONFIG_FIELD(evaluate), "on", 0, 0, NULL,
     "measure loss and accuracy, of text perplexity, on data kept for it, after every epoch and at "
     "the end"},
    {"evaluate-every", TESS_OPTION_INT, CONFIG_FIELD(evaluate_every), "0", 0, 1e12, NULL,
     "steps between further evaluations within an epoch; 0: none"},
    {"bind", TESS_OPTION_BOOL, CONFIG_FIELD(bind), "on", 0, 0, NULL,
     "give each rank its own cores when there are enough"},
    {"find-unused", TESS_OPTION_BOOL, CONFIG_FIELD(find_unused), "off", 0, 0, NULL,
     "let models with conditional branches leave parameters without a gradient: zero where other "
     "ranks used them, left alone where none did; off: stop and name them"},
    {"debug", TESS_OPTION_BOOL, CONFIG_FIELD(debug), "off", 0, 0, NULL,
     "before every collective compare over the ranks what each is about to do, and name the first "
     "that differs; slow"},
    {"audit", TESS_OPTION_REAL, CONFIG_FIELD(audit), "0", 0, 1, NULL,
     "share of the steps in which each rank computes a micro-batch of another rank again and the "
     "bits of its gradients are compared before the update; a difference ends the run with the "
     "name of the rank; 0: none"},
    {"hash-every", TESS_OPTION_INT, CONFIG_FIELD(hash_every), "0", 0, 1e12, NULL,
     "steps between digests of every parameter, compared over replicas and written to the run "
     "folder for tessera diff; 0: none"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

#define TENSOR_FIELD(member) offsetof(struct tess_tensor_options, member)

const struct tess_option tess_tensor_option_table[] = {
    {"ranks", TESS_OPTION_INT, TENSOR_FIELD(ranks), "0", 0, TESS_RANKS_MAX, NULL,
     "ranks along the tensor axis; 0: by --mesh, or what is left over"},
    {"sequence-parallel", TESS_OPTION_BOOL, TENSOR_FIELD(sequence), "off", 0, 0, NULL,
     "norms, dropout and residuals for 1/t of the positions on each tensor rank; all-gather and "
     "reduce-scatter in place of all-reduce, and in backward inputs are gathered once more, as "
     "they are not kept whole: 10 in place of 8 (t-1)/t of the activations in a block"},
    {"canonical", TESS_OPTION_INT, TENSOR_FIELD(canonical), "0", 0, 256, NULL,
     "cut layers into so many parts whatever the number of tensor ranks, which must divide it, and "
     "add them in one tree: the same bits for every such number; 0: as many parts as ranks"},
    {"runs", TESS_OPTION_INT, TENSOR_FIELD(runs), "1", 1, 16, NULL,
     "2 or more: sums over tensor ranks go on beside products, with the same bits: in backward "
     "beside those of the weights; in forward a product is computed in so many runs of whole "
     "micro-batches of the grid, where it divides them, the sum of one beside the product of the "
     "next. Hides what devices or networks move, nothing between ranks of one host's processor"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

#define LOSS_FIELD(member) offsetof(struct tess_loss_options, member)

const struct tess_option tess_loss_option_table[] = {
    {"smoothing", TESS_OPTION_REAL, LOSS_FIELD(smoothing), "0", 0, 1, NULL,
     "label smoothing in training: this share of the label goes to all classes alike"},
    {"z", TESS_OPTION_REAL, LOSS_FIELD(z), "0", 0, 1, NULL,
     "z-loss in training: add this times the square of log sum exp of the logits, so that they "
     "stay near 0; 1e-4 is usual"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

#define BN_FIELD(member) offsetof(struct tess_bn_options, member)

const struct tess_option tess_bn_option_table[] = {
    {"accumulate", TESS_OPTION_CHOICE, BN_FIELD(accumulate), "step", 0, 0, "step|micro",
     "when batch norm's running averages are updated: once a step, by the mean over its leaves, or "
     "by each leaf in turn, as PyTorch does for each micro-batch"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

#define LORA_FIELD(member) offsetof(struct tess_lora_options, member)

const struct tess_option tess_lora_option_table[] = {
    {"rank", TESS_OPTION_INT, LORA_FIELD(rank), "0", 0, 65536, NULL,
     "low-rank adapters: train two matrices of this rank beside each of the target layers, and "
     "nothing else; the model's own weights have no gradients and no optimizer state; 0: train "
     "the model"},
    {"alpha", TESS_OPTION_REAL, LORA_FIELD(alpha), "0", 0, 1e6, NULL,
     "what adapters add is multiplied by alpha / rank; 0: the rank"},
    {"targets", TESS_OPTION_STRING, LORA_FIELD(targets), "all", 0, 0, NULL,
     "layers that have adapters, by the ends of their names, joined by commas (q_proj,v_proj); "
     "all: every linear layer of the blocks"},
    {"init", TESS_OPTION_STRING, LORA_FIELD(init), "", 0, 0, NULL,
     "folder with adapter_config.json and adapter_model.safetensors, as Hugging Face's PEFT "
     "writes it: adapters to begin with, and their options; empty draws them from --seed, so that "
     "they add nothing at first"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

#define CUDA_FIELD(member) offsetof(struct tess_cuda_options, member)

const struct tess_option tess_cuda_option_table[] = {
    {"graph", TESS_OPTION_BOOL, CUDA_FIELD(graph), "off", 0, 0, NULL,
     "record the work of a step on the device once and play it again in every later one, where it "
     "does not change: one rank, no dropout, rounding to nearest; the shares of forward, backward "
     "and update in a step's time are then not measured"},
    {"autotune", TESS_OPTION_BOOL, CUDA_FIELD(autotune), "off", 0, 0, NULL,
     "measure the algorithms for each shape of product once, keep the fastest and store the choice "
     "on disk; off uses the library's heuristic; either way a shape has one algorithm and one "
     "result"},
    {"tf32", TESS_OPTION_BOOL, CUDA_FIELD(tf32), "off", 0, 0, NULL,
     "f32 products by tensor cores, which keep 10 bits of each factor: several times faster, with "
     "less precision than f32"},
    {"fp8-fast", TESS_OPTION_BOOL, CUDA_FIELD(fp8_fast), "off", 0, 0, NULL,
     "with --fp8, leave the sums of 8-bit products to the tensor cores, which keep 14 bits of them "
     "on Hopper; off has them brought to f32 every few products, which costs time"},
    {"sm-target", TESS_OPTION_INT, CUDA_FIELD(sm_target), "0", 0, 1024, NULL,
     "multiprocessors of a GPU for which cuBLASLt chooses products, where NCCL takes the others "
     "beside them (--comm.nccl.max-ctas); another number may give other bits; 0: all"},
    {"conv", TESS_OPTION_CHOICE, CUDA_FIELD(conv), "auto", 0, 0, "auto|im2col|cudnn",
     "who computes convolutions: im2col, windows laid out as matrices for cuBLASLt; cudnn, "
     "NVIDIA's library for them, not yet run on a device, leaf by leaf, and im2col where it has no "
     "deterministic algorithm; auto: im2col"},
    {"attention", TESS_OPTION_CHOICE, CUDA_FIELD(attention), "own", 0, 0, "own|cudnn|auto",
     "who computes attention: own, our kernels; cudnn, NVIDIA's library, not yet run on a device, "
     "and own where it has no deterministic algorithm; auto: the faster of the two, measured once "
     "for each shape and kept on disk; own where it cannot be kept"},
    {"decode", TESS_OPTION_CHOICE, CUDA_FIELD(decode), "fast", 0, 0, "fast|exact",
     "products that tessera score and generate compute too: fast, by the best algorithm for their "
     "rows; exact, by one for any number of rows, so that log-probabilities of score and generate "
     "have the bits of training on this type of GPU; both follow what the run had; not yet run on "
     "a device"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};

#define PLACE_FIELD(member) offsetof(struct tess_placing_options, member)

const struct tess_option tess_placing_option_table[] = {
    {"file", TESS_OPTION_STRING, PLACE_FIELD(file), "", 0, 0, NULL,
     "description of the machine or the cluster: NCCL's XML, hwloc's XML, nvidia-smi topo -m, "
     "Slurm's topology.conf or scontrol show topology, or tessera's own YAML"},
    {"order", TESS_OPTION_STRING, PLACE_FIELD(order), "auto", 0, 0, NULL,
     "which process becomes which rank, of several that mpirun, srun or torchrun started: natural, "
     "as they are numbered; file:F, from a file of process numbers in the order of the ranks or "
     "lines RANK HOST:SLOT; measure, by what the network between the hosts carries; auto: by "
     "--topology.file, else by the switches in Slurm's topology, else measured from 3 hosts on. "
     "Process 0 stays rank 0, results do not depend on it"},
    {"hosts", TESS_OPTION_STRING, PLACE_FIELD(hosts), "", 0, 0, NULL,
     "names of the hosts of --topology.file in its order, as node[1-4,7], where it has others"},
    {"save", TESS_OPTION_STRING, PLACE_FIELD(save), "", 0, 0, NULL,
     "file for the measured topology, for --topology.file in later runs; empty writes none"},
    {"nccl-graph", TESS_OPTION_BOOL, PLACE_FIELD(nccl_graph), "off", 0, 0, NULL,
     "give NCCL the rings found for the devices of one host, in a graph file read at its start; "
     "experimental in NCCL"},
    {"adapt", TESS_OPTION_BOOL, PLACE_FIELD(adapt), "off", 0, 0, NULL,
     "of ranks on several hosts with --run: where a part of the network became slow, and another "
     "order of ranks gains 10 % or more, save, number the ranks anew and go on, once for each "
     "part; "
     "results do not change"},
    {NULL, TESS_OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL},
};
