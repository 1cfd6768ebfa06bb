"""An emulator of PTX: kernels as Triton compiles them for GPUs of the sm_80 generation, and those for sm_90 that need
none of its newer instructions, run on a CPU, instruction by instruction.

Triton's interpreter runs what a kernel says. This runs what the compiler makes of it: the layouts, the fragments of
the tensor cores, the shuffles, the masks of every load, the copies that run beside the sums, the barriers.

    memory = Memory()
    arguments = [memory.address(tensor), ...]
    run(read(ptx, STEPS), memory, arguments, programs, shared)     the tensors then hold what the kernel wrote

    program.py, operands.py   the text of a kernel, read           threads.py      programs that branch together
    memory.py, shared.py      both memories, and what is a fault   machine.py      a launch, from beginning to end
    instructions.py           every instruction, by its name

One file has one family of instructions: `arithmetic`, `bits`, `comparisons`, `conversions`, `moves`, `access`,
`atomics`, `copies`, `matrices`, `lanes`, `control`. What is not in them is a `Fault`, as is everything that a GPU need
not do as it is meant: an address outside of what was handed over, a misaligned one, threads of a program that take a
branch two ways, a byte of shared memory where two warps meet with no barrier between, one that a copy has not brought
yet, a division by 0.

Not modelled: what comes after the PTX (ptxas: registers, spills, the order of instructions); how a GPU rounds inside
of a matrix product, and its approximate functions (here exact, rounded once); instructions of later generations, as
wgmma and the bulk copies; races between programs, or between the threads of one warp; time.
"""
