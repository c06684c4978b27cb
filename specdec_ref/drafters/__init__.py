"""Where candidate tokens come from: a small model, the text itself, or the first of several that has an idea."""

from specdec_ref.drafters.base import Drafter
from specdec_ref.drafters.feature import FeatureDrafter
from specdec_ref.drafters.first_match import FirstMatch
from specdec_ref.drafters.model_draft import ModelDrafter
from specdec_ref.drafters.prompt_lookup import PromptLookup

__all__ = ["Drafter", "FeatureDrafter", "FirstMatch", "ModelDrafter", "PromptLookup"]
