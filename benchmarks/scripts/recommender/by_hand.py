"""Neural collaborative filtering with two inputs: small batches of ids, embeddings, a small MLP on top."""

import numpy as np
from tensorflow import keras
from tensorflow.keras import layers

keras.utils.set_random_seed(10)

num_users, num_items, num_ratings = 2000, 1500, 64000
embedding_size = 24

users = np.random.randint(num_users, size=num_ratings)
items = np.random.randint(num_items, size=num_ratings)
taste, kind = np.random.normal(size=(num_users, 3)), np.random.normal(size=(num_items, 3))
ratings = 1 / (1 + np.exp(-(taste[users] * kind[items]).sum(axis=1)))


def build_model():
    user = keras.Input(shape=(), dtype="int64", name="user")
    item = keras.Input(shape=(), dtype="int64", name="item")
    user_vector = layers.Embedding(num_users, embedding_size, name="user_embedding")(user)
    item_vector = layers.Embedding(num_items, embedding_size, name="item_embedding")(item)
    match = layers.Multiply()([user_vector, item_vector])
    x = layers.Concatenate()([user_vector, item_vector, match])
    x = layers.Dense(64, activation="relu")(x)
    x = layers.Dense(32, activation="relu")(x)
    rating = layers.Dense(1, activation="sigmoid")(x)
    return keras.Model([user, item], rating)


model = build_model()
model.compile(
    optimizer=keras.optimizers.Adam(learning_rate=0.002),
    loss=keras.losses.MeanSquaredError(),
    metrics=[keras.metrics.MeanAbsoluteError()],
    steps_per_execution=100,
    jit_compile=True,
)
model.fit({"user": users, "item": items}, ratings.astype("float32"), batch_size=64, epochs=6, verbose=2)
