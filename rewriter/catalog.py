"""What the public names of TensorFlow, Keras and NumPy are: the tables behind the analysis.

Names are dotted as a script imports them, made canonical by `canonical`.
"""

from __future__ import annotations

import re
from functools import lru_cache

KERAS_FAMILIES = ("tensorflow.keras.", "keras.", "tf_keras.")

_PREFIXES = (
    ("tensorflow.compat.v1.", "tensorflow."),
    ("tensorflow.compat.v2.", "tensorflow."),
    ("tensorflow.python.keras.", "tensorflow.keras."),
    ("tensorflow.python.", "tensorflow."),
    ("tensorflow.optimizers.", "tensorflow.keras.optimizers."),
    ("tensorflow.losses.", "tensorflow.keras.losses."),
    ("tensorflow.metrics.", "tensorflow.keras.metrics."),
    ("tensorflow.initializers.", "tensorflow.keras.initializers."),
    ("tensorflow.contrib.keras.", "tensorflow.keras."),
    ("keras.api.", "keras."),
    ("keras.src.", "keras."),
    ("keras._tf_keras.keras.", "keras."),
    ("tensorflow.keras.keras.", "tensorflow.keras."),
)
_SYNONYMS = {
    "tensorflow.data.experimental.AUTOTUNE": "tensorflow.data.AUTOTUNE",
    "tensorflow.py_func": "tensorflow.py_function",
}
_MOVED = {  # keras path -> where it lives today
    "preprocessing.image.ImageDataGenerator": "preprocessing.image.ImageDataGenerator",
    "preprocessing.image_dataset_from_directory": "utils.image_dataset_from_directory",
    "preprocessing.text_dataset_from_directory": "utils.text_dataset_from_directory",
    "preprocessing.timeseries_dataset_from_array": "utils.timeseries_dataset_from_array",
    "Sequential": "models.Sequential",
    "Model": "models.Model",
    "Input": "layers.Input",
    "engine.Model": "models.Model",
    "engine.Functional": "models.Model",
    "engine.Sequential": "models.Sequential",
    "engine.Layer": "layers.Layer",
    "engine.Input": "layers.Input",
    "Layer": "layers.Layer",
    "InputLayer": "layers.InputLayer",
    "utils.PyDataset": "utils.PyDataset",
    "utils.Sequence": "utils.Sequence",
    "utils.all_utils.Sequence": "utils.Sequence",
}


def in_module(name: str, module: str) -> bool:
    return name == module or name.startswith(module + ".")


@lru_cache(maxsize=4096)
def canonical(name: str) -> str:
    """One spelling per object: `tensorflow.compat.v1.keras.layers.Dense` is `tensorflow.keras.layers.Dense`."""
    for old, new in _PREFIXES:
        if (name + ".").startswith(old):
            name = (new + name[len(old) :]).rstrip(".")
    for family in KERAS_FAMILIES:
        if name.startswith(family):
            return family + _keras_path(name[len(family) :])
    return _SYNONYMS.get(name, name)


def _keras_path(path: str) -> str:
    """`layers.core.Dense` → `layers.Dense`, `Sequential` → `models.Sequential`."""
    path = path.replace("layers.experimental.preprocessing.", "layers.")
    if path in _MOVED:
        return _MOVED[path]
    parts = path.split(".")
    if parts[0] == "engine" and len(parts) == 3:
        return _MOVED.get(f"engine.{parts[-1]}", path)
    if parts[0] == "utils" and parts[-1] in ("Sequence", "PyDataset", "OrderedEnqueuer", "to_categorical"):
        return f"utils.{parts[-1]}"
    if (
        parts[0] in ("layers", "optimizers", "callbacks", "losses", "metrics", "models")
        and len(parts) > 2
        and parts[-1][:1].isupper()
        and "legacy" not in parts
        and "schedules" not in parts
    ):
        return f"{parts[0]}.{parts[-1]}"
    return path


def keras_path(name: str) -> str:
    """The part after `tensorflow.keras.`, `keras.` or `tf_keras.`; empty for every other name."""
    name = canonical(name)
    for family in KERAS_FAMILIES:
        if name.startswith(family):
            return name[len(family) :]
    return ""


# -- kinds of the values that calls return --------------------------------------------------------------------------

OPTIMIZERS = frozenset(
    "Adam AdamW Adamax Nadam SGD RMSprop Adagrad Adadelta Ftrl Lion Adafactor Lamb Muon LossScaleOptimizer".split()
)

#: Methods of `tf.data.Dataset` that return a dataset.
DATASET_METHODS = frozenset(
    "map batch padded_batch ragged_batch shuffle repeat prefetch cache take skip filter flat_map interleave enumerate "
    "concatenate apply window unbatch zip shard with_options snapshot rebatch scan take_while unique group_by_window "
    "bucket_by_sequence_length rejection_resample ignore_errors random sparse_batch map_and_batch".split()
)

#: Functions under `tensorflow.data` that return a dataset.
DATASET_SOURCES = frozenset(
    [
        "tensorflow.data." + n
        for n in (
            "Dataset.from_tensor_slices Dataset.from_tensors Dataset.from_generator Dataset.range Dataset.list_files "
            "Dataset.zip Dataset.sample_from_datasets Dataset.choose_from_datasets Dataset.random Dataset.load "
            "TFRecordDataset TextLineDataset FixedLengthRecordDataset experimental.make_csv_dataset "
            "experimental.CsvDataset experimental.make_batched_features_dataset experimental.SqlDataset "
            "experimental.sample_from_datasets experimental.choose_from_datasets experimental.load"
        ).split()
    ]
)
KERAS_DATASETS = frozenset(
    "utils.image_dataset_from_directory utils.text_dataset_from_directory utils.audio_dataset_from_directory "
    "utils.timeseries_dataset_from_array".split()
)

#: Samples in the training part of the arrays that `keras.datasets.X.load_data()` returns, and in the test part.
DATASET_SIZES = {
    "mnist": (60000, 10000),
    "fashion_mnist": (60000, 10000),
    "cifar10": (50000, 10000),
    "cifar100": (50000, 10000),
    "imdb": (25000, 25000),
    "reuters": (8982, 2246),
    "boston_housing": (404, 102),
}
#: Numbers in one image of them.
IMAGE_VALUES = {"mnist": 28 * 28, "fashion_mnist": 28 * 28, "cifar10": 32 * 32 * 3, "cifar100": 32 * 32 * 3}

MODEL_CLASSES = frozenset({"models.Sequential", "models.Model"})
MODEL_FACTORIES = re.compile(
    r"models\.(load_model|clone_model|model_from_json|model_from_yaml|model_from_config|save_model)$"
    r"|applications\.(\w+\.)?[A-Z]\w*$|saving\.load_model$"
)

#: The layers that Keras has or had, as `keras.layers.X`.
LAYERS = frozenset(
    (
        "AbstractRNNCell Activation ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D "
        "AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D AdaptiveMaxPooling3D Add "
        "AdditiveAttention AlphaDropout Attention AugMix AutoContrast Average AveragePooling1D "
        "AveragePooling2D AveragePooling3D AvgPool1D AvgPool2D AvgPool3D BatchNormalization Bidirectional "
        "CategoryEncoding CenterCrop Concatenate ContrastLimitedAdaptiveHistogramEqualization Conv1D "
        "Conv1DTranspose Conv2D Conv2DTranspose Conv3D Conv3DTranspose ConvLSTM1D ConvLSTM2D ConvLSTM3D "
        "Convolution1D Convolution1DTranspose Convolution2D Convolution2DTranspose Convolution3D "
        "Convolution3DTranspose Cropping1D Cropping2D Cropping3D CuDNNGRU CuDNNLSTM CutMix Dense DenseFeatures "
        "DepthwiseConv1D DepthwiseConv2D Discretization Dot Dropout ELU EinsumDense Embedding Equalization "
        "Flatten FlaxLayer GRU GRUCell GaussianDropout GaussianNoise GlobalAveragePooling1D "
        "GlobalAveragePooling2D GlobalAveragePooling3D GlobalAvgPool1D GlobalAvgPool2D GlobalAvgPool3D "
        "GlobalMaxPool1D GlobalMaxPool2D GlobalMaxPool3D GlobalMaxPooling1D GlobalMaxPooling2D "
        "GlobalMaxPooling3D GroupNormalization GroupQueryAttention HashedCrossing Hashing Identity InputLayer "
        "IntegerLookup JaxLayer LSTM LSTMCell Lambda Layer LayerNormalization LeakyReLU LocallyConnected1D "
        "LocallyConnected2D Masking MaxNumBoundingBoxes MaxPool1D MaxPool2D MaxPool3D MaxPooling1D "
        "MaxPooling2D MaxPooling3D Maximum MelSpectrogram Minimum MixUp MultiHeadAttention Multiply "
        "Normalization PReLU Permute Pipeline RMSNormalization RNN RandAugment RandomBrightness "
        "RandomColorDegeneration RandomColorJitter RandomContrast RandomCrop RandomElasticTransform "
        "RandomErasing RandomFlip RandomFourierFeatures RandomGaussianBlur RandomGrayscale RandomHeight "
        "RandomHue RandomInvert RandomPerspective RandomPosterization RandomRotation RandomSaturation "
        "RandomSharpness RandomShear RandomTranslation RandomWidth RandomZoom ReLU RepeatVector Rescaling "
        "Reshape Resizing ReversibleEmbedding STFTSpectrogram SeparableConv1D SeparableConv2D "
        "SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Softmax Solarization "
        "SpatialDropout1D SpatialDropout2D SpatialDropout3D SpectralNormalization StackedRNNCells StringLookup "
        "Subtract SyncBatchNormalization TFSMLayer TextVectorization ThresholdedReLU TimeDistributed "
        "TorchModuleWrapper UnitNormalization UpSampling1D UpSampling2D UpSampling3D Wrapper ZeroPadding1D "
        "ZeroPadding2D ZeroPadding3D"
    ).split()
)

#: Functions of `keras.backend` and `keras.random` that return a tensor, as far as models use them.
TENSOR_FUNCTIONS = frozenset(
    [
        "backend." + n
        for n in (
            "abs sum mean max min prod std var square sqrt exp log pow clip maximum minimum softmax relu elu sigmoid tanh "
            "softplus l2_normalize dot batch_dot concatenate stack reshape squeeze expand_dims repeat repeat_elements tile "
            "transpose permute_dimensions flatten batch_flatten cast one_hot argmax argmin equal not_equal greater less "
            "switch zeros ones zeros_like ones_like constant variable random_normal random_uniform random_bernoulli "
            "truncated_normal conv1d conv2d pool2d bias_add gather cumsum stop_gradient reverse sign round sin cos "
            "shape int_shape arange dropout resize_images logsumexp spatial_2d_padding"
        ).split()
    ]
    + ["random." + n for n in "normal uniform randint dropout truncated_normal categorical gamma binomial beta".split()]
)

#: Lower-case functional forms of the merge layers: `layers.add([a, b])`.
MERGE_FUNCTIONS = frozenset("add subtract multiply average maximum minimum concatenate dot".split())

_KINDS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"optimizers\.schedules\.\w+$|experimental\.(CosineDecay|LinearCosineDecay|NoisyLinearCosineDecay)\w*$"
        ),
        "schedule",
    ),
    (
        re.compile(r"(optimizers|mixed_precision)\.(legacy\.|experimental\.)*(" + "|".join(sorted(OPTIMIZERS)) + r")$"),
        "optimizer",
    ),
    (re.compile(r"optimizers\.(sgd|adam|rmsprop|adagrad|adadelta|adamax|nadam|get)$"), "optimizer"),
    (re.compile(r"layers\.(?!InputSpec$)[A-Z]\w*$"), "layer"),
    (re.compile(r"callbacks\.(experimental\.)?[A-Z]\w*$"), "callback"),
    (re.compile(r"losses\.[A-Z]\w*$"), "loss"),
    (re.compile(r"metrics\.[A-Z]\w*$"), "metric"),
    (re.compile(r"(initializers|regularizers|constraints)\.\w+$"), "setting"),
    (re.compile(r"preprocessing\.image\.ImageDataGenerator$"), "image-generator"),
    (re.compile(r"preprocessing\.sequence\.TimeseriesGenerator$"), "loader"),
    (re.compile(r"datasets\.\w+\.load_data$"), "load-data"),
)


@lru_cache(maxsize=4096)
def kind_of_call(name: str) -> str:
    """What calling the object of this name gives: "dataset", "layer", ...; empty where it is not known."""
    name = canonical(name)
    if name in DATASET_SOURCES:
        return "dataset"
    if name == "tensorflow_datasets.load":
        return "tfds"
    if path := keras_path(name):
        if path in KERAS_DATASETS:
            return "dataset"
        if path in MODEL_CLASSES or MODEL_FACTORIES.match(path):
            return "model"
        if path == "layers.Input":
            return "tensor"
        for pattern, kind in _KINDS:
            if pattern.match(path):
                return kind
    if in_module(name, "numpy"):
        return "array"
    return ""


# -- signatures: names of the positional parameters, without self ---------------------------------------------------

SIGNATURES: dict[str, tuple[str, ...]] = {
    "Model.compile": (
        "optimizer",
        "loss",
        "metrics",
        "loss_weights",
        "weighted_metrics",
        "run_eagerly",
        "steps_per_execution",
        "jit_compile",
        "auto_scale_loss",
    ),
    "Model.fit": (
        "x",
        "y",
        "batch_size",
        "epochs",
        "verbose",
        "callbacks",
        "validation_split",
        "validation_data",
        "shuffle",
        "class_weight",
        "sample_weight",
        "initial_epoch",
        "steps_per_epoch",
        "validation_steps",
        "validation_batch_size",
        "validation_freq",
        "max_queue_size",
        "workers",
        "use_multiprocessing",
    ),
    "Model.fit_generator": (
        "generator",
        "steps_per_epoch",
        "epochs",
        "verbose",
        "callbacks",
        "validation_data",
        "validation_steps",
        "validation_freq",
        "class_weight",
        "max_queue_size",
        "workers",
        "use_multiprocessing",
        "shuffle",
        "initial_epoch",
    ),
    "Model.evaluate": (
        "x",
        "y",
        "batch_size",
        "verbose",
        "sample_weight",
        "steps",
        "callbacks",
        "max_queue_size",
        "workers",
        "use_multiprocessing",
        "return_dict",
    ),
    "Model.predict": (
        "x",
        "batch_size",
        "verbose",
        "steps",
        "callbacks",
        "max_queue_size",
        "workers",
        "use_multiprocessing",
    ),
    "Model.evaluate_generator": (
        "generator",
        "steps",
        "callbacks",
        "max_queue_size",
        "workers",
        "use_multiprocessing",
        "verbose",
    ),
    "Model.predict_generator": (
        "generator",
        "steps",
        "callbacks",
        "max_queue_size",
        "workers",
        "use_multiprocessing",
        "verbose",
    ),
    "Model.train_on_batch": ("x", "y", "sample_weight", "class_weight", "reset_metrics", "return_dict"),
    "Model": ("inputs", "outputs", "name"),
    "Sequential": ("layers", "name"),
    "Dataset.map": ("map_func", "num_parallel_calls", "deterministic"),
    "Dataset.batch": ("batch_size", "drop_remainder", "num_parallel_calls", "deterministic"),
    "Dataset.padded_batch": ("batch_size", "padded_shapes", "padding_values", "drop_remainder"),
    "Dataset.shuffle": ("buffer_size", "seed", "reshuffle_each_iteration"),
    "Dataset.repeat": ("count",),
    "Dataset.take": ("count",),
    "Dataset.skip": ("count",),
    "Dataset.prefetch": ("buffer_size",),
    "Dataset.cache": ("filename",),
    "Dataset.apply": ("transformation_func",),
    "Dataset.flat_map": ("map_func",),
    "Dataset.filter": ("predicate",),
    "Dataset.interleave": ("map_func", "cycle_length", "block_length", "num_parallel_calls", "deterministic"),
    "Dataset.from_generator": ("generator", "output_types", "output_shapes", "args", "output_signature"),
    "Dataset.from_tensor_slices": ("tensors",),
    "Dataset.list_files": ("file_pattern", "shuffle", "seed"),
    "Dataset.zip": ("datasets",),
    "TFRecordDataset": ("filenames", "compression_type", "buffer_size", "num_parallel_reads"),
    "TextLineDataset": ("filenames", "compression_type", "buffer_size", "num_parallel_reads"),
    "FixedLengthRecordDataset": (
        "filenames",
        "record_bytes",
        "header_bytes",
        "footer_bytes",
        "buffer_size",
        "compression_type",
        "num_parallel_reads",
    ),
    "image_dataset_from_directory": (
        "directory",
        "labels",
        "label_mode",
        "class_names",
        "color_mode",
        "batch_size",
        "image_size",
        "shuffle",
        "seed",
        "validation_split",
        "subset",
    ),
    "layers.Dense": ("units", "activation", "use_bias"),
    "layers.Conv2D": (
        "filters",
        "kernel_size",
        "strides",
        "padding",
        "data_format",
        "dilation_rate",
        "groups",
        "activation",
    ),
    "layers.Activation": ("activation",),
    "layers.Lambda": ("function", "output_shape"),
    "layers.TimeDistributed": ("layer",),
    "layers.Bidirectional": ("layer",),
    "optimizers.Adam": ("learning_rate", "beta_1", "beta_2", "epsilon", "amsgrad"),
    "optimizers.AdamW": ("learning_rate", "weight_decay", "beta_1", "beta_2", "epsilon", "amsgrad"),
    "optimizers.SGD": ("learning_rate", "momentum", "nesterov"),
    "callbacks.ModelCheckpoint": (
        "filepath",
        "monitor",
        "verbose",
        "save_best_only",
        "save_weights_only",
        "mode",
        "save_freq",
    ),
    "callbacks.TensorBoard": (
        "log_dir",
        "histogram_freq",
        "write_graph",
        "write_images",
        "write_steps_per_second",
        "update_freq",
        "profile_batch",
    ),
    "ImageDataGenerator.flow": ("x", "y", "batch_size", "shuffle"),
}

#: Old spellings of keyword arguments.
KEYWORD_SYNONYMS = {
    "nb_epoch": "epochs",
    "lr": "learning_rate",
    "samples_per_epoch": "samples_per_epoch",
    "steps_per_run": "steps_per_execution",
    "experimental_steps_per_execution": "steps_per_execution",
}

#: Attributes of what `image_dataset_from_directory` returns that are lost by the next dataset method.
DATASET_EXTRAS = frozenset({"class_names", "file_paths"})

#: What `from tensorflow import *` and `from keras import *` bind, as far as codemods ask for it.
STAR_NAMES = frozenset(
    "keras data layers models optimizers callbacks losses metrics utils datasets applications "
    "mixed_precision config random image io nn math function GradientTape Variable constant "
    "backend initializers regularizers preprocessing Sequential Model Input".split()
)
