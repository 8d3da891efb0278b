"""What must be known of a program before one process of it becomes many.

    program.py      which files run together, and the ways in which they train (`ways`)
    existing.py     what is distributed already, by Horovod or by a strategy
    lacking.py      what such a program lacks, by name
    optimizers.py   what each `compile` is given, and where its learning rate stands
    sources.py      where training data can be split so that every sample is on one rank
    steps.py        which runs of a TensorFlow 1 graph train
    feeds.py        which arrays these are fed, and how many steps a loop makes
    estimators.py    where Estimators are made, what is asked of them, and what reads their data
    pipelines_v1.py the one `tf.data` pipeline that a graph reads
    portions.py     what a replica has of a step's numbers when it gets a part of the batch
    writes.py       what writes files or prints, and what reads such files back

Nothing here edits: the conversions in `codemods/distribution/` do, on top of these facts.
"""
