"""What switches TF32 off is taken out, unless the script means it."""

from __future__ import annotations

import pytest

from tests.check import Check

check = Check("tf32")

OFF = "tf.config.experimental.enable_tensor_float_32_execution(False)"
MODEL = "model = tf.keras.Sequential([tf.keras.layers.Dense(1)])\n"


@pytest.mark.parametrize(
    "statement",
    [
        OFF,
        "tf.config.experimental.enable_tensor_float_32_execution(enabled=False)",
        "switch = tf.config.experimental.enable_tensor_float_32_execution\nswitch(False)",
        "# no TF32\n" + OFF,
        OFF + "  # tf32 off",
        OFF.replace("False", "0"),
    ],
)
def test_taken_out(statement: str) -> None:
    rest = "".join(line + "\n" for line in statement.splitlines() if line.startswith("switch ="))
    check.fixes("import tensorflow as tf\n" + statement + "\n" + MODEL, "import tensorflow as tf\n" + rest + MODEL)


def test_the_variable() -> None:
    check.fixes(
        'import os\nos.environ["NVIDIA_TF32_OVERRIDE"] = "0"\nimport tensorflow as tf\n',
        "import os\nimport tensorflow as tf\n",
    )
    check.fixes(
        'import os\nos.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")\nimport tensorflow as tf\n',
        "import os\nimport tensorflow as tf\n",
    )
    check.fixes(
        'from os import environ\nenviron["NVIDIA_TF32_OVERRIDE"] = "0"\nimport tensorflow as tf\n',
        "from os import environ\nimport tensorflow as tf\n",
    )


VARIABLE = "NVIDIA_TF32_OVERRIDE"


@pytest.mark.parametrize(
    "statement",
    [
        f'os.environ.update({{"{VARIABLE}": "0"}})',
        f'os.environ.update({VARIABLE}="0")',
        f'os.environ.update(dict({VARIABLE}="0"))',
        f'os.environ |= {{"{VARIABLE}": "0"}}',
        f'os.environ.__setitem__("{VARIABLE}", "0")',
        f'os.putenv("{VARIABLE}", "0")',
    ],
)
def test_the_variable_in_every_way_to_set_it(statement: str) -> None:
    check.fixes(f"import os\n{statement}\nimport tensorflow as tf\n", "import os\nimport tensorflow as tf\n")


@pytest.mark.parametrize(
    "statement",
    [
        f'os.environ.update({{"TF_CPP_MIN_LOG_LEVEL": "3", "{VARIABLE}": "0"}})',
        f'os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", {VARIABLE}="0")',
        f'os.environ |= {{"{VARIABLE}": "0", **more}}',
        f'os.environ.update(more, {VARIABLE}="0")',
        f'os.environ.update(dict(more, {VARIABLE}="0"), A="1")',
    ],
)
def test_the_variable_among_others(statement: str) -> None:
    before = f"import os\n{statement}\nimport tensorflow as tf\n"
    check.fixes(before, before.replace('"0"', '"1"'))


def test_the_variable_for_another_process_or_by_another_value() -> None:
    text = "import os, subprocess\n{}\nimport tensorflow as tf\n"
    check.ignores(text.format(f'subprocess.run(["a"], env=dict(os.environ, {VARIABLE}="0"))'))
    check.ignores(text.format(f'settings.update({VARIABLE}="0")'))
    check.ignores(text.format(f'os.environ |= {{"{VARIABLE}": "1"}}'))
    check.refuses(text.format(f'os.environ |= {{"{VARIABLE}": flag}}'), "depends on `flag`")


def test_on_a_line_with_others_and_in_a_block() -> None:
    check.fixes(f"import tensorflow as tf\n{OFF}; print(1)\n", "import tensorflow as tf\nprint(1)\n")
    check.fixes(
        f"import tensorflow as tf\n\n\ndef main():\n    {OFF}\n\n\nmain()\n",
        "import tensorflow as tf\n\n\ndef main():\n    pass\n\n\nmain()\n",
    )
    check.fixes(
        f'import tensorflow as tf\nif __name__ == "__main__":\n    {OFF}\n    print(1)\n',
        'import tensorflow as tf\nif __name__ == "__main__":\n    print(1)\n',
    )


def test_a_comment_about_something_else_stays() -> None:
    check.fixes(
        f"import tensorflow as tf\n# GPU setup\n{OFF}\n",
        f"import tensorflow as tf\n# GPU setup\n{OFF.replace('False', 'True')}\n",
    )
    check.fixes(
        'import os\n# GPU setup\nos.environ["NVIDIA_TF32_OVERRIDE"] = "0"\nimport tensorflow as tf\n',
        'import os\n# GPU setup\nos.environ["NVIDIA_TF32_OVERRIDE"] = "1"\nimport tensorflow as tf\n',
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (f"# full precision for the small gradients\n{OFF}", "a comment gives a reason"),
        (f"{OFF}  # to reproduce the paper", "a comment gives a reason"),
        (f"# GPU setup\n{OFF}  # no TF32", "the comments there are about more"),
        (f"if precise:\n    {OFF}", "under a condition"),
        (f"tf.keras.backend.set_floatx('float64')\n{OFF}", "computes in float64"),
        (f"{OFF}\nx = tf.zeros(3, tf.float64)", "computes in float64"),
        (f"tf.config.experimental.enable_op_determinism()\n{OFF}", "checks its numbers"),
        (f"import numpy as np\n{OFF}\nnp.testing.assert_allclose(a, b)", "checks its numbers"),
        (f"{OFF}\nrun()\n{OFF.replace('False', 'True')}", "switches it on and off"),
        (f"old = tf.config.experimental.tensor_float_32_execution_enabled()\n{OFF}", "switches it on and off"),
        (f"x = {OFF}", "its value is used"),
        ('import os\nos.environ["A"] = os.environ["NVIDIA_TF32_OVERRIDE"] = "0"', "something else is set with it"),
        (OFF.replace("False", "not args.tf32"), "depends on `not args.tf32`"),
    ],
)
def test_refused(text: str, reason: str) -> None:
    check.refuses(f"import tensorflow as tf\n{text}\n", reason)


def test_before_tensorflow_has_it() -> None:
    check.refuses('import os\nos.environ["NVIDIA_TF32_OVERRIDE"] = "0"\nimport tensorflow as tf\n', "NVIDIA's own builds",
                  target="tf1.15")  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        OFF.replace("False", "True"),
        'import os\nos.environ["NVIDIA_TF32_OVERRIDE"] = "1"',
        'import os\nos.environ["OTHER"] = "0"',
        "mine.enable_tensor_float_32_execution(False)",
        MODEL,
    ],
)
def test_ignored(text: str) -> None:
    check.ignores(f"import tensorflow as tf\n{text}\n")


def test_session_script() -> None:
    text = "import tensorflow as tf\n\ntf.compat.v1.disable_eager_execution()\n%ssess = tf.compat.v1.Session()\n"
    off = "tf.config.experimental.enable_tensor_float_32_execution(False)\n"
    Check("tf32", target="tf2.15").fixes(text % off, text % "")
