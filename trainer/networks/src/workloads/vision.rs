//! ResNets (K. He et al., CVPR 2016; v1.5: the stride of a bottleneck is in its 3 x 3 convolution) and VGG-16 (K. Simonyan
//! and A. Zisserman, ICLR 2015) over images of 3 x 224 x 224.

use super::{Class, KernelCost, TableLayer, Workload};

/// SGD with momentum reads gradient, parameter and velocity and writes two of them.
const SGD_PASSES: usize = 5;

/// A workload under construction, and the shape of the picture that the next layer reads.
struct Draft {
    layers: Vec<TableLayer>,
    channels: usize,
    side: usize,
}

impl Draft {
    fn new() -> Draft {
        Draft { layers: Vec::new(), channels: 3, side: 224 }
    }

    fn numbers(&self) -> usize {
        self.channels * self.side * self.side
    }

    /// Adds a convolution; `from` and `to` are the (channels, side) of its input and output. The draft's own shape stays as it is.
    fn weigh(&mut self, name: &str, from: (usize, usize), to: (usize, usize), window: usize, bias: bool) {
        let (inputs, outputs) = (from.0 * from.1 * from.1, to.0 * to.1 * to.1);
        let weights = window * window * from.0 * to.0;
        let flops = 2 * window * window * from.0 * outputs;
        let each = KernelCost::new(Class::Convolution, flops, inputs + outputs, weights);
        let params = if bias { vec![weights, to.0] } else { vec![weights] };
        self.layers.push(TableLayer::product(name, params, each, inputs));
    }

    fn conv(&mut self, name: &str, channels: usize, window: usize, stride: usize, bias: bool) {
        let from = (self.channels, self.side);
        (self.channels, self.side) = (channels, self.side / stride);
        self.weigh(name, from, (self.channels, self.side), window, bias);
    }

    /// Adds a batch norm: forward, x is read twice (statistics, normalisation) and y written.
    fn norm(&mut self, name: &str) {
        let channels = self.channels;
        let norm = TableLayer::norm(name, channels, self.numbers(), 3);
        self.layers.push(TableLayer { sync_len: (2 * channels + 1, 2 * channels), ..norm });
    }

    fn element(&mut self, name: &str, forward: usize, backward: usize) {
        let x = self.numbers();
        // A rectifier keeps its output, which the next layer keeps as its input.
        self.layers.push(TableLayer::elementwise(name, forward * x, backward * x, 0));
    }

    /// Adds a rectifier, which works in place: its activation is read and written.
    fn relu(&mut self, name: &str) {
        self.element(name, 2, 3);
    }

    fn pool(&mut self, name: &str, window: usize) {
        let x = self.numbers();
        self.side /= window;
        let moved = x + self.numbers();
        self.layers.push(TableLayer::elementwise(name, moved, moved, x));
    }

    fn linear(&mut self, name: &str, outputs: usize) {
        let inputs = self.numbers();
        let each = KernelCost::new(Class::Product, 2 * inputs * outputs, inputs + outputs, inputs * outputs);
        self.layers.push(TableLayer::product(name, vec![inputs * outputs, outputs], each, inputs));
        (self.channels, self.side) = (outputs, 1);
    }
}

pub(super) fn resnet(name: &str, bottleneck: bool, blocks: [usize; 4]) -> Workload {
    let mut draft = Draft::new();
    draft.conv("conv1", 64, 7, 2, false);
    draft.norm("bn1");
    draft.relu("relu");
    draft.pool("maxpool", 2);
    for (stage, &count) in blocks.iter().enumerate() {
        let width = 64 << stage;
        let out = if bottleneck { 4 * width } else { width };
        for block in 0..count {
            let at = format!("layer{}.{block}", stage + 1);
            let stride = if block == 0 && stage > 0 { 2 } else { 1 };
            let before = (draft.channels, draft.side);
            if bottleneck {
                draft.conv(&format!("{at}.conv1"), width, 1, 1, false);
                draft.norm(&format!("{at}.bn1"));
                draft.relu(&format!("{at}.relu1"));
                draft.conv(&format!("{at}.conv2"), width, 3, stride, false);
                draft.norm(&format!("{at}.bn2"));
                draft.relu(&format!("{at}.relu2"));
                draft.conv(&format!("{at}.conv3"), out, 1, 1, false);
                draft.norm(&format!("{at}.bn3"));
            } else {
                draft.conv(&format!("{at}.conv1"), width, 3, stride, false);
                draft.norm(&format!("{at}.bn1"));
                draft.relu(&format!("{at}.relu1"));
                draft.conv(&format!("{at}.conv2"), width, 3, 1, false);
                draft.norm(&format!("{at}.bn2"));
            }
            if stride > 1 || before.0 != out {
                draft.weigh(&format!("{at}.downsample.0"), before, (draft.channels, draft.side), 1, false);
                draft.norm(&format!("{at}.downsample.1"));
            }
            // The sum of the block and its shortcut; backward, the gradient of the sum goes to both.
            draft.element(&format!("{at}.add"), 3, 2);
            draft.relu(&format!("{at}.relu"));
        }
    }
    let side = draft.side;
    draft.pool("avgpool", side);
    draft.linear("fc", 1000);
    Workload::new(name, "an image", draft.layers, SGD_PASSES)
}

pub(super) fn vgg16() -> Workload {
    let mut draft = Draft::new();
    let mut number = 0;
    for (stage, &(channels, count)) in [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)].iter().enumerate() {
        for _ in 0..count {
            draft.conv(&format!("features.{number}"), channels, 3, 1, true);
            draft.relu(&format!("features.{}", number + 1));
            number += 2;
        }
        draft.pool(&format!("pool{}", stage + 1), 2);
        number += 1;
    }
    for (at, outputs) in [(0, 4096), (3, 4096), (6, 1000)] {
        draft.linear(&format!("classifier.{at}"), outputs);
        if at < 6 {
            draft.relu(&format!("classifier.{}", at + 1));
        }
    }
    Workload::new("vgg16", "an image", draft.layers, SGD_PASSES)
}
