"""DCL as a Lightning callback: logged by the Trainer's logger, saved in its checkpoints, resumed from them."""

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from congruency.integrations.lightning import DCLCallback

import lightning  # isort: skip  # after the callback, which makes torchvision importable where it is half installed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--seed", type=int, default=0)
options = parser.parse_args()

lightning.seed_everything(options.seed)
inputs = torch.randn(512, 10)
targets = (inputs @ torch.randn(10, 3)).argmax(1)
data = DataLoader(TensorDataset(inputs, targets), batch_size=32)


class Classifier(lightning.LightningModule):
    """Nothing in it knows of DCL."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 3))

    def training_step(self, batch, index):
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.log("loss", loss, on_step=False, on_epoch=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


class Losses(lightning.Callback):
    """Keep the mean loss of every epoch."""

    def on_train_epoch_end(self, trainer, module):
        losses.append(trainer.callback_metrics["loss"].item())


losses = []
with tempfile.TemporaryDirectory() as folder:
    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
    }
    epochs = max(2, options.steps // len(data))

    trainer = lightning.Trainer(max_epochs=epochs // 2, callbacks=[DCLCallback(window=50), Losses()], **quiet)
    trainer.fit(Classifier(), data)
    trainer.save_checkpoint(Path(folder) / "half.ckpt")

    callback = DCLCallback(window=50)
    trainer = lightning.Trainer(max_epochs=epochs, callbacks=[callback, Losses()], log_every_n_steps=10, **quiet)
    trainer.fit(Classifier(), data, ckpt_path=Path(folder) / "half.ckpt")  # resumes, references included

stats = callback.stats
print(f"loss: {losses[0]:.3f} -> {losses[-1]:.3f}, means of the first and the last epoch")
print(f"{int(stats.corrected_steps)} of {stats.steps} gradients corrected, both fits together")
print(f"congruency {trainer.callback_metrics['dcl/congruency'].item():.3f} at the last logged step")
