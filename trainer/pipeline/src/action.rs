//! What a stage of a pipeline does at a time.

/// One action of a stage, on one micro-batch. Chunks are counted over the whole network, in the order of its layers.
#[allow(missing_docs, reason = "the fields are those of the type's line")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// The forward pass of a chunk.
    Forward { chunk: usize, micro: usize },
    /// The whole backward pass of a chunk: the gradients of its input and of its weights.
    Backward { chunk: usize, micro: usize },
    /// The gradient of a chunk's input alone; the gradients of its weights follow later.
    InputGrad { chunk: usize, micro: usize },
    /// The gradients of a chunk's weights, after the gradient of its input.
    WeightGrad { chunk: usize, micro: usize },
}

impl Action {
    /// The chunk that the action is on.
    pub fn chunk(self) -> usize {
        self.at().0
    }

    /// The micro-batch that the action is on.
    pub fn micro(self) -> usize {
        self.at().1
    }

    fn at(self) -> (usize, usize) {
        match self {
            Action::Forward { chunk, micro }
            | Action::Backward { chunk, micro }
            | Action::InputGrad { chunk, micro }
            | Action::WeightGrad { chunk, micro } => (chunk, micro),
        }
    }
}
