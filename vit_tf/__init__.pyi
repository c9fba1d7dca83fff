# The public names: read by `lazy_loader` in `__init__.py`, and by editors.
from . import analysis as analysis, data as data, distribute as distribute
from .analysis.explorer.exploration import explore as explore
from .analysis.probes.features import extract_features as extract_features
from .analysis.probes.prediction import predict as predict
from .analysis.report.assemble import make_report as make_report
from .checkpoints.keras_hub import from_keras_hub as from_keras_hub
from .checkpoints.loading import load as load, load_pretrained as load_pretrained
from .checkpoints.released import list_pretrained as list_pretrained
from .checkpoints.saving import load_features as load_features, load_model as load_model
from .data.preprocessing import Preprocessing as Preprocessing
from .features import edits as edits
from .features.edits import intervene as intervene
from .features.flops import count_flops as count_flops
from .features.submodels import submodel as submodel
from .features.tokens import TokenGrid as TokenGrid
from .features.torch_features import torch_features as torch_features
from .models.beit import BEiT as BEiT
from .models.bit import BiT as BiT
from .models.clip import CLIPViT as CLIPViT
from .models.distilled import DistilledViT as DistilledViT
from .models.hybrid import HybridViT as HybridViT
from .models.image_encoder import with_text_head as with_text_head
from .models.mixer import Mixer as Mixer
from .models.model import reinitialize as reinitialize
from .models.resolution import at_resolution as at_resolution
from .models.rotary import RotaryViT as RotaryViT
from .models.siglip import SigLIPViT as SigLIPViT
from .models.vit import ViT as ViT
from .training.masked_patches import MaskedPatchPrediction as MaskedPatchPrediction
from .training.recipes import (
    FineTuning as FineTuning,
    Pretraining as Pretraining,
    Recipe as Recipe,
    recipe as recipe,
)
from .training.runs import train as train

__version__: str
