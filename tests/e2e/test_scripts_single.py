"""Training scripts of one process, each explained by its model's arithmetic."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import pytest

from tests.e2e.script_case import (
    Gemm,
    ScriptCase,
    ScriptRun,
    input_gradient,
    linear,
    run_case,
    times,
)
from understudy.reporting.labels import short_name

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("interceptor", "script_home")]

Kernels = Counter[str]

# --- what all scripts share ----------------------------------------------------------------------

#: Of torch.nn.utils.clip_grad_norm_, besides its multi-tensor kernels: zeros for the parts of the
#: norms, the norms from their parts, one vector of them, its norm, and
#: coefficient = min(largest / (norm + 1e-6), 1).
CLIP = Counter(
    {
        "FillFunctor": 1,
        "lpnorm_cleanup": 1,
        "CatArrayBatchedCopy_alignedK_contig": 1,
        "NormTwoOps": 1,
        "CUDAFunctorOnSelf_add": 1,
        "reciprocal_kernel_cuda": 1,
        "AUnaryFunctor": 1,
        "launch_clamp_scalar": 1,
    }
)
CLIP_MULTI_TENSOR = Counter({"LpNormFunctor": 1, "BinaryOpScalarTensorFunctor": 1})
#: Adam as a sequence of multi-tensor kernels: both averages (lerp; mul, addcmul), the root of the
#: second one (sqrt, div, add), the step (addcdiv).
ADAM = Counter(
    {
        "TernaryOpScalarFunctor": 1,
        "BinaryOpScalarFunctor": 2,
        "PointwiseOpScalarFunctor": 1,
        "UnaryOpFunctor": 1,
        "BinaryOpScalarListFunctor": 1,
        "PointwiseOpScalarListFunctor": 1,
    }
)
#: Weight decay apart from the gradient.
ADAMW = ADAM + Counter({"BinaryOpScalarFunctor": 1})
FUSED_ADAM = Counter({"FusedAdamMathFunctor": 1})
SGD = Counter({"BinaryOpListAlphaFunctor": 1})
MOMENTUM = SGD + Counter({"BinaryOpScalarFunctor": 1, "BinaryOpListAlphaFunctor": 1})
#: mean(x**2) and its gradient: 1, expanded and divided by the number of elements, times 2 x.
SQUARE_MEAN = Counter(
    {
        "vectorized_elementwise_kernel": 1,
        "MeanOps": 1,
        "FillFunctor": 1,
        "AUnaryFunctor": 1,
        "BUnaryFunctor": 1,
        "BinaryFunctor": 1,
    }
)
#: Cross entropy and its gradient: 1 into zeros, then that of the softmax.
CROSS_ENTROPY = Counter(
    {
        "softmax_warp_forward": 1,
        "nll_loss_forward_reduce_cuda_kernel_2d": 1,
        "FillFunctor": 2,
        "nll_loss_backward_reduce_cuda_kernel_2d": 1,
        "softmax_warp_backward": 1,
    }
)
RANDOM = "distribution_elementwise_grid_stride_kernel"
FLOAT32_BYTES = 4


def scaled(count: int, kernels: Kernels) -> Kernels:
    return Counter({name: count * n for name, n in kernels.items()})


def check_multi_tensor(run: ScriptRun, expected: Kernels, sizes: list[int]) -> None:
    """Multi-tensor kernels take all tensors in one launch, one block per 65536 elements of each:
    up to 210 tensors in 2240 blocks (ATen/native/cuda/MultiTensorApply.cuh, CUDA 13)."""
    blocks = sum(math.ceil(size / 65536) for size in sizes)
    assert len(sizes) <= 210 and blocks <= 2240
    launches = Counter(
        (short_name(o.name), o.grid[0])
        for o in run.operations(0)
        if o.grid is not None and "multi_tensor_apply_kernel" in o.name
    )
    launches.pop(("lpnorm_cleanup", len(sizes)), None)
    if "FusedAdamMathFunctor" in expected:
        # Step counts lie on the device, a tensor of one element each.
        assert launches.pop(("BinaryOpScalarFunctor", len(sizes))) == 1
    assert launches == {(name, blocks): n for name, n in expected.items()}


def transformer_layer(width: int, bias: bool = True) -> list[int]:
    """Elements of a layer's parameters: two norms, attention's two linear layers, the MLP's two."""
    w = width
    return [
        *(2 * [w] + [3 * w * w] + bias * [3 * w] + [w * w] + bias * [w]),
        *(2 * [w] + [4 * w * w] + bias * [4 * w] + [4 * w * w] + bias * [w]),
    ]


def transformer_layer_gemms(tokens: int, width: int) -> Counter[Gemm]:
    w = width
    return times(
        1,
        linear(tokens, w, 3 * w),
        linear(tokens, w, w),
        linear(tokens, w, 4 * w),
        linear(tokens, 4 * w, w),
    )


@dataclass(frozen=True)
class Convolution:
    batch: int
    channels_in: int
    channels_out: int
    side: int
    size_in: int
    stride: int
    padding: int

    @property
    def size_out(self) -> int:
        return (self.size_in + 2 * self.padding - self.side) // self.stride + 1

    @property
    def weights(self) -> int:
        return self.channels_in * self.channels_out * self.side**2

    def passes(self, *names: str) -> Counter[tuple[int | str, ...]]:
        """forward, dgrad, wgrad; as `convolutions` finds them."""
        sizes = (self.batch, self.channels_in, self.channels_out, self.side**2)
        pixels = (self.size_in**2, self.size_out**2)
        return Counter([(name, *sizes, *pixels) for name in names])


ALL_PASSES = ("forward", "dgrad", "wgrad")


def convolutions(run: ScriptRun) -> Counter[tuple[int | str, ...]]:
    names = ("batch", "channels_in", "channels_out", "window", "pixels_in", "pixels_out")
    return Counter(
        (o.family.removeprefix("convolution_"), *(int(o.features[name]) for name in names))
        for o in run.operations(0)
        if o.family.startswith("convolution_")
    )


# --- accumulation, checkpointing, precision ------------------------------------------------------


def check_gradient_accumulation(run: ScriptRun) -> None:
    layers, width, micro_batch, micro_batches = 4, 512, 64, 4
    assert run.gemms(0) == times(
        micro_batches,
        times(layers, linear(micro_batch, width, width))
        - input_gradient(micro_batch, width, width),
    )
    per_micro_batch = Counter(
        {
            RANDOM: 1,
            "launch_clamp_scalar": layers,  # ReLU
            "BinaryFunctor": layers,  # and its gradient
            "sum_functor": layers,  # gradients of biases
            "BUnaryFunctor": 2,  # the loss / micro-batches, and its gradient
        }
    )
    assert run.kernels(0) == (
        scaled(micro_batches, per_micro_batch + SQUARE_MEAN)
        # The first micro-batch's gradients become the parameters', the others are added.
        + Counter({"CUDAFunctor_add": (micro_batches - 1) * 2 * layers})
        + CLIP
        + CLIP_MULTI_TENSOR
        + ADAMW
    )
    check_multi_tensor(run, CLIP_MULTI_TENSOR + ADAMW, layers * [width * width, width])


def check_activation_checkpointing(run: ScriptRun) -> None:
    layers, width, tokens = 3, 256, 4 * 128
    again: Counter[Gemm] = Counter(
        [
            (tokens, 3 * width, width, 1),
            (tokens, width, width, 1),
            (tokens, 4 * width, width, 1),
            (tokens, width, 4 * width, 1),
        ]
    )
    assert run.gemms(0) == times(layers, transformer_layer_gemms(tokens, width), again)
    families = run.families(0)
    assert (families["attention_forward"], families["attention_backward"]) == (2 * layers, layers)
    # The layer is computed again up to what backward needs last: its sum with the input is not.
    # The reentrant way computes all of it.
    added_again = 2 if "--use-reentrant" in run.case.args else 1
    per_layer = Counter(
        {
            "vectorized_layer_norm_kernel": 2 * 2,
            "GeluCUDAKernelImpl": 2 * 1,
            "fused_dropout_kernel_vec": 2 * 2,
            "CUDAFunctor_add": 2 + added_again + 2,  # sums with the input, and of their gradients
            "layer_norm_grad_input_kernel_vectorized": 2,
            "GammaBetaBackwardCUDAKernelTemplate": 2,
            "GeluBackwardCUDAKernelImpl": 1,
            "masked_scale_kernel": 2,  # dropout
            "sum_functor": 4,  # biases
            "CatArrayBatchedCopy_vectorized": 1,  # queries, keys, values
        }
    )
    ends = Counter({RANDOM: 1, "direct_copy_kernel_cuda": 1, "bfloat16_copy_kernel_cuda": 1})
    steps = Counter({"BinaryOpScalarFunctor": 1})
    assert run.kernels(0) == scaled(layers, per_layer) + ends + SQUARE_MEAN + FUSED_ADAM + steps
    check_multi_tensor(run, FUSED_ADAM, layers * transformer_layer(width))


def check_amp_grad_scaler(run: ScriptRun) -> None:
    layers, width, classes, batch = 4, 512, 64, 128
    assert run.gemms(0) == (
        times(layers, linear(batch, width, width))
        - input_gradient(batch, width, width)
        + linear(batch, width, classes)
    )
    assert {o.dtype for o in run.operations(0) if o.family == "gemm"} == {"float16"}
    linears = layers + 1
    unscale = Counter({"UnaryOpFunctor": 1})
    assert run.kernels(0) == (
        Counter(
            {
                RANDOM: 2,
                # Inputs, weights and biases; the gradient of the logits.
                "float16_copy_kernel_cuda": 1 + 2 * linears + 1,
                # The logits, the gradients of weights and biases; 1 / scale goes over float64.
                "direct_copy_kernel_cuda": 1 + 2 * linears + 2,
                "launch_clamp_scalar": layers,
                "BinaryFunctor": layers + 2,  # ReLU's gradients; the scaled loss and its gradient
                "sum_functor": linears,
                "reciprocal_kernel_cuda": 1,
                "FillFunctor": 1,  # whether a gradient is infinite
                "amp_update_scale_cuda_kernel": 1,
            }
        )
        + CROSS_ENTROPY
        + CLIP
        + CLIP_MULTI_TENSOR
        + unscale
        + MOMENTUM
    )
    sizes = layers * [width * width, width] + [width * classes, classes]
    check_multi_tensor(run, CLIP_MULTI_TENSOR + unscale + MOMENTUM, sizes)
    # The one value that the host asks for: whether the step is to be left out.
    assert [o.name for o in run.operations(0) if "d2h" in o.name] == ["memcpy d2h pinned"]


def check_fp8(run: ScriptRun) -> None:
    layers, width, batch = 4, 512, 256
    assert run.gemms(0) == (
        times(layers, linear(batch, width, width)) - input_gradient(batch, width, width)
    )
    assert {o.dtype for o in run.operations(0) if o.family == "gemm"} == {"float8"}
    # Input and weight of each layer in E4M3, the gradient of its output in E5M2.
    per_tensor = Counter(
        {
            "AbsFunctor": 1,
            "MaxNanFunctor": 1,
            "direct_copy_kernel_cuda": 1,  # the largest value in float32
            "launch_clamp_scalar": 2,
            "reciprocal_kernel_cuda": 2,
            "AUnaryFunctor": 1,
            "BinaryFunctor": 1,
        }
    )
    assert run.kernels(0) == (
        scaled(3 * layers, per_tensor)
        + Counter(
            {
                RANDOM: 1,
                # To E4M3; SiLU and its gradient.
                "vectorized_elementwise_kernel": 2 * layers + 2 * layers,
                # To E5M2; transposed: every gradient and input, all weights but the first layer's.
                "float8_copy_kernel_cuda": layers + 2 * layers + (layers - 1),
                "direct_copy_kernel_cuda": 1,
                "bfloat16_copy_kernel_cuda": 1,
                "BinaryOpScalarFunctor": 1,
            }
        )
        + SQUARE_MEAN
        + FUSED_ADAM
    )
    check_multi_tensor(run, FUSED_ADAM, layers * [width * width])


# --- recurrent, convolutional, graph -------------------------------------------------------------


def check_lstm(run: ScriptRun) -> None:
    vocab, width, layers, batch, steps = 1024, 256, 2, 16, 35
    # Four gates, each of the input and of the state, with two biases.
    weights = layers * 4 * (2 * width * width + 2 * width)
    sizes = f"{steps}x{batch}x{width} weights {weights}"
    recurrent = Counter(o.name for o in run.operations(0) if o.family == "recurrent")
    assert recurrent == {f"cudnn rnn {name} {sizes}": 1 for name in ALL_PASSES}
    assert run.gemms(0) == linear(steps * batch, width, vocab)
    assert run.kernels(0) == (
        Counter(
            {
                RANDOM: 1,
                "vectorized_gather_kernel": 1,
                "embedding_backward_feature_kernel": 1,
                "sum_functor": 1,  # the head's bias
                # Zeros: gradients of the embedding, of the two last states, of all weights.
                "FillFunctor": 4,
            }
        )
        + CROSS_ENTROPY
        + CLIP
        + CLIP_MULTI_TENSOR
        + SGD
    )
    per_layer = [4 * width * width, 4 * width * width, 4 * width, 4 * width]
    parameters = [vocab * width, *layers * per_layer, vocab * width, vocab]
    check_multi_tensor(run, CLIP_MULTI_TENSOR + SGD, parameters)


def check_gan(run: ScriptRun) -> None:
    latent, width, batch = 64, 32, 16
    judge = [
        Convolution(batch, channels_in, channels_out, 4, size, *stride_and_padding)
        for channels_in, channels_out, size, stride_and_padding in (
            (3, width, 32, (2, 1)),
            (width, 2 * width, 16, (2, 1)),
            (2 * width, 4 * width, 8, (2, 1)),
            (4 * width, 1, 4, (1, 0)),
        )
    ]
    # A transposed convolution is the gradient of a convolution from its output to its input.
    make = [
        Convolution(batch, channels_out, channels_in, 4, size, *stride_and_padding)
        for channels_in, channels_out, size, stride_and_padding in (
            (latent, 4 * width, 4, (1, 0)),
            (4 * width, 2 * width, 8, (2, 1)),
            (2 * width, width, 16, (2, 1)),
            (width, 3, 32, (2, 1)),
        )
    ]
    expected: Counter[tuple[int | str, ...]] = Counter()
    for i, layer in enumerate(make):
        expected += layer.passes("dgrad", "wgrad", *(["forward"] if i > 0 else []))
    for images_need_gradients in (False, False, True):  # real, made, made for the generator
        for i, layer in enumerate(judge):
            expected += layer.passes("forward", "wgrad")
            expected += layer.passes(*(["dgrad"] if i > 0 or images_need_gradients else []))
    assert convolutions(run) == expected
    # The generator's three norms run once, the discriminator's two three times.
    norms, activations = 3 + 3 * 2, 3 * 3
    assert run.families(0)["normalization"] == 2 * norms
    judge_parameters = len(judge) + 2 * 2
    per_loss = Counter(
        {
            "MeanOps": 1,
            "launch_log_sigmoid_forward_kernel": 1,
            "sigmoid_kernel_cuda": 1,
        }
    )
    expected_kernels = scaled(3, per_loss) + Counter(
        {
            RANDOM: 2,
            "tanh_kernel_cuda": 1,
            "tanh_backward_kernel_cuda": 1,
            "launch_clamp_scalar": 3,  # ReLU
            "vectorized_elementwise_kernel": 2 * activations,  # leaky ReLU and its gradient
            "CUDAFunctorOnSelf_add": norms,  # counts of batches
            # In each loss three; gradients of the discriminator are added twice.
            "CUDAFunctor_add": 3 * 3 + 2 * judge_parameters,
        }
    )
    kernels = run.kernels(0)
    assert {name: kernels[name] for name in expected_kernels} == expected_kernels
    optimizers = Counter(
        {
            (short_name(o.name), o.grid[0])
            for o in run.operations(0)
            if o.grid is not None and "multi_tensor_apply_kernel" in o.name
        }
    )
    blocks = [
        sum(math.ceil(layer.weights / 65536) for layer in layers) + 2 * count
        for layers, count in ((judge, 2), (make, 3))
    ]
    assert optimizers == {(name, count): 1 for name in ADAM for count in blocks}


def check_unet_diffusion(run: ScriptRun) -> None:
    width, size, batch = 32, 32, 8
    embedding = 4 * width
    low = size // 2
    # Residual blocks: channels in and out, and the side of their images.
    blocks = [
        (width, width, size),
        (width, 2 * width, low),
        (4 * width, 2 * width, low),
        (3 * width, width, size),
    ]

    def conv(inputs: int, outputs: int, side: int, size_in: int, stride: int = 1) -> Convolution:
        return Convolution(batch, inputs, outputs, side, size_in, stride, side // 2)

    layers = [
        conv(3, width, 3, size),
        conv(width, width, 3, size, stride=2),
        conv(2 * width, 2 * width, 3, size),
        conv(width, 3, 3, size),
    ]
    for inputs, outputs, side in blocks:
        layers += [conv(inputs, outputs, 3, side), conv(outputs, outputs, 3, side)]
        if inputs != outputs:
            layers.append(conv(inputs, outputs, 1, side))
    expected = sum((layer.passes(*ALL_PASSES) for layer in layers), Counter())
    assert convolutions(run) == expected - layers[0].passes("dgrad")

    pixels, channels = batch * low * low, 2 * width
    assert run.gemms(0) == (
        linear(batch, width, embedding)
        - input_gradient(batch, width, embedding)
        + linear(batch, embedding, embedding)
        + times(1, *(linear(batch, embedding, outputs) for _, outputs, _ in blocks))
        + linear(pixels, channels, 3 * channels)
        + linear(pixels, channels, channels)
    )
    kernels = run.kernels(0)
    assert kernels["fmha_cutlassF_f32_aligned_64x64_rf_sm80"] == 1
    assert kernels["fmha_cutlassB_f32_aligned_64x64_k32_sm80"] == 1
    norms = 2 * len(blocks) + 2
    for name in ("RowwiseMoments", "ComputeFusedParams", "ComputeInternalGradients"):
        assert kernels[f"{name}CUDAKernel"] == norms
    assert kernels["upsample_nearest2d_out_frame"] == 1
    assert kernels["upsample_nearest2d_backward_out_frame"] == 1
    assert kernels["index_elementwise_kernel"] == 1  # what is kept of the image at step t
    assert kernels["sin_kernel_cuda"] == kernels["cos_kernel_cuda"] == 1
    biases = [layer.channels_out for layer in layers]
    linears = [(width, embedding), (embedding, embedding), (channels, 3 * channels)]
    linears += [(channels, channels), *((embedding, outputs) for _, outputs, _ in blocks)]
    norm_channels = [c for inputs, outputs, _ in blocks for c in (inputs, outputs)]
    sizes = [
        *(layer.weights for layer in layers),
        *biases,
        *(inputs * outputs for inputs, outputs in linears),
        *(outputs for _, outputs in linears),
        *2 * [*norm_channels, channels, width],
    ]
    average = Counter({"TernaryOpScalarFunctor": 1})
    check_multi_tensor(run, ADAM + average, sizes)


def check_gnn(run: ScriptRun) -> None:
    nodes, features, width, classes, layers = 2000, 64, 128, 16, 3
    widths = [features, *(layers - 1) * [width], classes]
    sizes = list(pairwise(widths))
    # Each layer has two linear layers; one gives the score of a node.
    assert run.gemms(0) == (
        times(2, *(linear(nodes, *size) for size in sizes))
        - times(2, input_gradient(nodes, *sizes[0]))
        + linear(nodes, width, 1)
    )
    kernels = run.kernels(0)
    # Messages along the edges, in each layer and weighted by attention: index_select and index_add,
    # each of which is the other's gradient.
    messages = layers + 1
    assert kernels["vectorized_gather_kernel"] == 2 * messages
    assert kernels["tma_scatter_add_kernel"] == 2 * messages
    # Scatter: degrees, the largest score, the sum of weights. Gather: a score per edge, the largest
    # and the sum for each. Gradients: of two gathers and of the sum.
    assert kernels["_scatter_gather_elementwise_kernel"] == 3 + 3 + 3
    # Gradients of the biases; of the degrees' divisions none; the softmax's weights.
    assert kernels["exp_kernel_cuda"] == kernels["neg_kernel_cuda"] == 1
    hidden = layers - 1
    assert kernels["launch_clamp_scalar"] == hidden + 1  # ReLU; degrees
    parameters = [s for i, o in sizes for s in (i * o, i * o, o)] + [width, 1]
    weight_decay = Counter({"BinaryOpListAlphaFunctor": 1})
    check_multi_tensor(run, ADAM + weight_decay, parameters)
    # Everything stays on the device.
    assert not [o.name for o in run.operations(0) if "h2d" in o.name or "d2h" in o.name]


# --- vision --------------------------------------------------------------------------------------


def check_vit(run: ScriptRun) -> None:
    image, patch, layers, width, classes, batch = 64, 8, 3, 256, 100, 8
    patches = (image // patch) ** 2
    tokens = batch * (patches + 1)  # and the class token
    assert run.gemms(0) == (
        times(layers, transformer_layer_gemms(tokens, width)) + linear(batch, width, classes)
    )
    embed = Convolution(batch, 3, width, patch, image, patch, 0)
    assert convolutions(run) == embed.passes("forward", "wgrad")
    families, kernels = run.families(0), run.kernels(0)
    assert families["attention_forward"] == families["attention_backward"] == layers
    norms = 2 * layers + 1
    assert kernels["vectorized_layer_norm_kernel"] == norms
    assert kernels["layer_norm_grad_input_kernel_vectorized"] == norms
    assert kernels["GammaBetaBackwardCUDAKernelTemplate"] == norms
    assert kernels["GeluCUDAKernelImpl"] == kernels["GeluBackwardCUDAKernelImpl"] == layers
    # After attention and twice in the MLP; after the sum with the positions.
    assert kernels["fused_dropout_kernel_vec"] == 3 * layers + 1
    assert kernels["masked_scale_kernel"] == 3 * layers + 1
    sizes = [
        *(embed.weights, width, width, (patches + 1) * width),
        *layers * transformer_layer(width),
        *(width, width, width * classes, classes),
    ]
    check_multi_tensor(run, CLIP_MULTI_TENSOR + FUSED_ADAM, sizes)


def resnet50_convolutions(batch: int, size: int) -> list[Convolution]:
    """He et al., Deep Residual Learning, table 1, with the stride in the 3x3 convolution."""

    def conv(inputs: int, outputs: int, side: int, size_in: int, stride: int = 1) -> Convolution:
        return Convolution(batch, inputs, outputs, side, size_in, stride, side // 2)

    layers = [conv(3, 64, 7, size, 2)]
    size, channels = size // 4, 64  # another 2 by the pooling
    for width, blocks, first_stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = first_stride if block == 0 else 1
            layers += [
                conv(channels, width, 1, size),
                conv(width, width, 3, size, stride),
                conv(width, 4 * width, 1, size // stride),
            ]
            if block == 0:
                layers.append(conv(channels, 4 * width, 1, size, stride))
            size, channels = size // stride, 4 * width
    return layers


def check_resnet50(run: ScriptRun) -> None:
    batch, size, classes, width = 8, 64, 1000, 2048
    layers = resnet50_convolutions(batch, size)
    count, blocks = len(layers), 3 + 4 + 6 + 3
    assert count == 53
    expected = sum((layer.passes(*ALL_PASSES) for layer in layers), Counter())
    assert convolutions(run) == expected - layers[0].passes("dgrad")
    assert run.gemms(0) == linear(batch, width, classes)
    activations = 1 + 3 * blocks
    kernels = Counter(
        {
            RANDOM: 2,
            "launch_clamp_scalar": activations,  # ReLU
            "BinaryFunctor": activations,  # and its gradient
            # Sums with the input, and of the gradients that come back on both ways.
            "CUDAFunctor_add": 2 * blocks,
            "CUDAFunctorOnSelf_add": count,  # batches that each norm has seen
            "MeanOps": 1,  # pooling at the end
            "BUnaryFunctor": 1,  # and its gradient
            "sum_functor": 1,  # the last layer's bias
        }
    )
    if "--channels-last" in run.case.args:
        # Sums over at least 8 * 256 pixels are those of several blocks, which meet at semaphores
        # (flexible_launch_configs in ATen/native/cuda/Normalization.cuh).
        shared = sum(math.ceil(batch * layer.size_out**2 / 256) >= 8 for layer in layers)
        kernels += Counter(
            {
                "max_pool_forward_nhwc": 1,
                "max_pool_backward_nhwc": 1,
                # Semaphores, forward and backward; zeros for the gradients of both poolings' ends.
                "FillFunctor": 2 * shared + 2,
                # Channels last and bfloat16: PyTorch's own norms.
                "batch_norm_collect_statistics_channels_last_kernel": count,
                "unrolled_elementwise_kernel_for_multi_outputs": count,  # running statistics
                "batch_norm_transform_input_channels_last_kernel": count,
                "batch_norm_backward_reduce_channels_last_kernel": count,
                "batch_norm_backward_elemt_channels_last_kernel": count,
                # Images, all weights, the last layer's bias, and the gradient of the logits.
                "bfloat16_copy_kernel_cuda": 1 + (count + 1) + 1 + 1,
                # Gradients of these weights and the bias, the logits, the images' layout.
                "direct_copy_kernel_cuda": (count + 1) + 1 + 1 + 1,
            }
        )
    else:
        # Zeros for the gradient of the pooling's input.
        kernels += Counter(
            {"max_pool_forward_nchw": 1, "max_pool_backward_nchw": 1, "FillFunctor": 1}
        )
        assert run.families(0)["normalization"] == 2 * count
    decay = Counter({"BinaryOpListAlphaFunctor": 1})
    assert run.kernels(0) == kernels + CROSS_ENTROPY + MOMENTUM + decay
    sizes = [layer.weights for layer in layers]
    sizes += [layer.channels_out for layer in layers] * 2 + [width * classes, classes]
    assert sum(sizes) == 25_557_032  # the documented number of parameters
    check_multi_tensor(run, MOMENTUM + decay, sizes)


def check_detection(run: ScriptRun) -> None:
    images, boxes, channels, classes = 4, 100, 32, 8
    backbone = Convolution(images, 3, channels, 3, 64, 4, 1)
    assert convolutions(run) == backbone.passes("forward", "wgrad")
    assert run.gemms(0) == linear(images * boxes, 7 * 7 * channels, classes)
    kernels = run.kernels(0)
    assert kernels["roi_align_forward_kernel_impl"] == 1
    assert kernels["roi_align_backward_kernel_impl"] == 1
    # Every image is thinned out twice: boxes sorted, compared, kept.
    for name in ("warpMergeSortKVInPlace", "nms_kernel_impl", "gather_keep_from_mask"):
        assert kernels[name] == 2 * images
    pooled = images * boxes * channels * 7 * 7
    (forward,) = [o for o in run.operations(0) if "roi_align_forward" in o.name]
    (block,) = {o.block for o in run.operations(0) if "roi_align_forward" in o.name}
    assert block is not None and forward.grid == (math.ceil(pooled / block[0]), 1, 1)
    # How many boxes are kept is asked for each time.
    assert len([o for o in run.operations(0) if "d2h" in o.name]) == 2 * images
    check_multi_tensor(run, SGD, [backbone.weights, channels, 7 * 7 * channels * classes, classes])


NONE = "none"
CASES = [
    ScriptCase("gradient_accumulation.py", NONE, check_gradient_accumulation),
    ScriptCase("activation_checkpointing.py", NONE, check_activation_checkpointing),
    ScriptCase(
        "activation_checkpointing.py",
        NONE,
        check_activation_checkpointing,
        args=("--use-reentrant",),
    ),
    ScriptCase("amp_grad_scaler.py", NONE, check_amp_grad_scaler),
    ScriptCase("fp8.py", NONE, check_fp8),
    ScriptCase("lstm.py", NONE, check_lstm),
    ScriptCase("gan.py", NONE, check_gan),
    ScriptCase("unet_diffusion.py", NONE, check_unet_diffusion),
    ScriptCase("gnn.py", NONE, check_gnn),
    ScriptCase("vit.py", NONE, check_vit),
    ScriptCase("resnet50.py", NONE, check_resnet50),
    ScriptCase("resnet50.py", NONE, check_resnet50, args=("--channels-last",)),
    ScriptCase("detection.py", NONE, check_detection),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_script(case: ScriptCase, tmp_path: Path) -> None:
    run_case(case, tmp_path)
