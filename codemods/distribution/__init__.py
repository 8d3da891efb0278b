"""The parts of a conversion from one process to many. Each adds its edits, or says what stands against it.

    conversion.py   the edits, refusals and notes of one program; the name that Horovod has in each of its files
    start.py        `hvd.init()`, and a GPU of its own for every process
    data.py         training data split over the ranks
    data_loaders.py data_generators.py   loaders and generators, of which every rank takes its own batches
    data_order.py   sets, listed files and hashes, which differ from process to process or from host to host
    data_names.py   modules and random numbers for these
    rates.py        learning rates scaled with the number of ranks, with a warm-up
    loop_rates.py   the same in loops
    optimizers.py   gradients averaged by the optimizer that `compile` is given
    keras3.py       the same, and what callbacks do, for Keras 3: functions and classes that the script gets
    callbacks.py    first weights and metrics in common; callbacks that write on rank 0 only
    writes.py       files and prints on rank 0 only
    tape.py         a program that trains in loops of its own, with `GradientTape`
    loops.py        the data of such loops, and as many steps on every rank
    names.py        how what a step trains is written in the loop that calls it
    train_step.py   models with a `train_step` of their own
    fit.py          a program that trains with `fit`: all of these together
    session.py      a program that trains in TensorFlow 1 sessions
    estimator.py    a program that trains with Estimators; estimator_data.py, estimator_optimizers.py are parts of it

    strategy_tape.py    loops with `GradientTape` under a strategy: steps that every replica runs
    strategy_losses.py  what such a step computes for the whole batch: losses, metrics, what it returns
    strategy_data.py    every replica's part of a batch
    strategy_lifts.py   steps that stand in the loop become functions first
    strategy_hosts.py   what the workers of several hosts do together in such loops

`codemods/mirrored.py` and `codemods/multiworker.py` share:

    strategies.py         the strategy itself, where it is made, and what stands against it
    scope.py              the ranges of statements that go under `with strategy.scope():`
    strategy_fit.py       a program that trains with `fit`
    strategy_batches.py   losses and batches of which a GPU has a part, or none
    strategy_workers.py   the same data on several hosts, and files of one of them

`codemods/horovod.py` has the function that converts each way to train (which `rewriter/distribution/program.py` names).
"""
