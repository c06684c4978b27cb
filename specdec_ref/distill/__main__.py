"""`python -m specdec_ref.distill STAGE …`: the commands of `specdec distill`, for launchers that want a module.

Two processes: python -m torch.distributed.run --standalone --nproc_per_node 2 -m specdec_ref.distill train --config smoke
"""

from specdec_ref.cli import main
from specdec_ref.cli.distill import app

if __name__ == "__main__":
    main(app)
