"""The parts of a conversion from one process to many. Each adds its edits, or says what stands against it.

    conversion.py   the edits, refusals and notes of one program; the name that Horovod has in each of its files
    start.py        `hvd.init()`, and a GPU of its own for every process
    data.py         training data split over the ranks
    rates.py        learning rates scaled with the number of ranks, with a warm-up
    optimizers.py   gradients averaged by the optimizer that `compile` is given
    callbacks.py    first weights and metrics in common; callbacks that write on rank 0 only
    writes.py       files and prints on rank 0 only
    tape.py         a program that trains in loops of its own, with `GradientTape`
    loops.py        the data of such loops, and as many steps on every rank
    names.py        how what a step trains is written in the loop that calls it
    train_step.py   models with a `train_step` of their own
    fit.py          a program that trains with `fit`: all of these together
    session.py      a program that trains in TensorFlow 1 sessions

`codemods/horovod.py` has the function that converts each way to train (which `rewriter/distribution/program.py` names).
"""
