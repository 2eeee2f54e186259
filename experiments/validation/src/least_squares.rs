//! Robust least squares with priors, for fits of physical parameters.
//!
//! ```text
//! minimise   sum of weight x huber(residual)  +  sum of ((unknown - mean) / std_dev)^2
//! by         Gauss-Newton with Levenberg's damping; rows far off weigh less in every iteration
//! ```

/// A change of an unknown by which slopes of residuals are found.
const NUDGE: f64 = 1e-4;
/// The most iterations.
const ITERATIONS: usize = 40;

/// The rows of a fit: their residuals as functions of the unknowns.
pub trait Residuals {
    /// What all rows need of a vector of unknowns.
    type State;

    /// The number of rows.
    fn rows(&self) -> usize;

    /// What all rows need of these unknowns, of which the one with the number in `nudged` is changed by so much.
    fn state(&self, unknowns: &[f64], nudged: Option<(usize, f64)>) -> Self::State;

    /// The weight of a row.
    fn weight(&self, row: usize) -> f64;

    /// The residual of a row in standard deviations.
    fn residual(&self, row: usize, state: &Self::State) -> f64;

    /// The slope of a row's residual by an unknown where it is known without a nudge.
    fn slope(&self, _row: usize, _unknown: usize) -> Option<f64> {
        None
    }
}

/// The prior of the unknowns, and from which residual on a row is far off.
#[derive(Clone, Copy, Debug)]
pub struct RobustPrior<'a> {
    /// Means of the unknowns.
    pub means: &'a [f64],
    /// Standard deviations of the unknowns.
    pub std_devs: &'a [f64],
    /// Beyond this residual a row is far off.
    pub far: f64,
}

/// A square matrix, row by row.
#[derive(Clone, Debug)]
pub struct NormalMatrix {
    size: usize,
    values: Vec<f64>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Solution {
    /// The unknowns.
    pub unknowns: Vec<f64>,
    /// The inverse of the unknowns' covariance.
    pub normal: NormalMatrix,
}

impl Solution {
    /// The standard deviation of each unknown.
    pub fn std_devs(&self) -> Vec<f64> {
        (0..self.normal.size)
            .map(|i| self.covariance(i).map_or(f64::NAN, |column| column[i].max(0.0).sqrt()))
            .collect()
    }

    /// The covariances of an unknown with all; `None` if the rows and the prior leave it open.
    pub fn covariance(&self, unknown: usize) -> Option<Vec<f64>> {
        let mut unit = vec![0.0; self.normal.size];
        *unit.get_mut(unknown)? = 1.0;
        self.normal.solve(&unit)
    }
}

/// Finds the unknowns from `start` on.
pub fn minimise<R: Residuals>(rows: &R, setting: RobustPrior<'_>, start: &[f64]) -> Solution {
    let mut unknowns = start.to_vec();
    let mut damping = 1e-3;
    let mut last = objective(rows, &unknowns, setting);
    let mut normal = NormalMatrix::zero(start.len());
    for _ in 0..ITERATIONS {
        let (matrix, slope) = normal_equations(rows, &unknowns, setting);
        normal = matrix;
        let mut better = false;
        while damping < 1e9 {
            let mut damped = normal.clone();
            (0..damped.size).for_each(|i| *damped.at_mut(i, i) *= 1.0 + damping);
            let Some(step) = damped.solve(&slope) else { break };
            let trial: Vec<f64> =
                unknowns.iter().zip(step).map(|(unknown, step)| unknown + step.clamp(-0.5, 0.5)).collect();
            let found = objective(rows, &trial, setting);
            if found < last {
                better = last - found > 1e-7 * last;
                (unknowns, last, damping) = (trial, found, (damping / 5.0).max(1e-6));
                break;
            }
            damping *= 5.0;
        }
        if !better {
            break;
        }
    }
    Solution { unknowns, normal }
}

fn objective<R: Residuals>(rows: &R, unknowns: &[f64], setting: RobustPrior<'_>) -> f64 {
    let state = rows.state(unknowns, None);
    let far = setting.far;
    let data: f64 = (0..rows.rows())
        .map(|row| {
            let off = rows.residual(row, &state).abs();
            rows.weight(row) * if off < far { off * off } else { far * (2.0 * off - far) }
        })
        .sum();
    let held = unknowns.iter().zip(setting.means).zip(setting.std_devs);
    data + held.map(|((unknown, mean), std_dev)| ((unknown - mean) / std_dev).powi(2)).sum::<f64>()
}

fn normal_equations<R: Residuals>(
    rows: &R,
    unknowns: &[f64],
    setting: RobustPrior<'_>,
) -> (NormalMatrix, Vec<f64>) {
    let count = unknowns.len();
    let here = rows.state(unknowns, None);
    let nudged: Vec<R::State> =
        (0..count).map(|number| rows.state(unknowns, Some((number, NUDGE)))).collect();
    let (mut matrix, mut slope) = (NormalMatrix::zero(count), vec![0.0; count]);
    let mut gradient: Vec<(usize, f64)> = Vec::new();
    for row in 0..rows.rows() {
        let off = rows.residual(row, &here);
        let weight = rows.weight(row) * (setting.far / off.abs()).min(1.0);
        gradient.clear();
        for (number, other) in nudged.iter().enumerate() {
            let change = rows.slope(row, number).unwrap_or_else(|| (rows.residual(row, other) - off) / NUDGE);
            if change != 0.0 {
                gradient.push((number, change));
            }
        }
        for &(i, a) in &gradient {
            slope[i] -= weight * a * off;
            for &(j, b) in &gradient {
                *matrix.at_mut(i, j) += weight * a * b;
            }
        }
    }
    for i in 0..count {
        let tight = 1.0 / (setting.std_devs[i] * setting.std_devs[i]);
        *matrix.at_mut(i, i) += tight;
        slope[i] -= tight * (unknowns[i] - setting.means[i]);
    }
    (matrix, slope)
}

impl NormalMatrix {
    /// A matrix of `size` x `size` zeros.
    pub fn zero(size: usize) -> NormalMatrix {
        NormalMatrix { size, values: vec![0.0; size * size] }
    }

    /// The value in this row and column.
    pub fn at(&self, row: usize, column: usize) -> f64 {
        self.values[row * self.size + column]
    }

    /// The value in this row and column, to be changed.
    pub fn at_mut(&mut self, row: usize, column: usize) -> &mut f64 {
        &mut self.values[row * self.size + column]
    }

    /// The lower Cholesky factor; `None` if the matrix is not positive definite.
    pub fn factor(&self) -> Option<NormalMatrix> {
        let mut lower = NormalMatrix::zero(self.size);
        for i in 0..self.size {
            for j in 0..=i {
                let sum: f64 = (0..j).map(|k| lower.at(i, k) * lower.at(j, k)).sum();
                let left = self.at(i, j) - sum;
                *lower.at_mut(i, j) = match (i == j, left > 0.0) {
                    (true, false) => return None,
                    (true, true) => left.sqrt(),
                    (false, _) => left / lower.at(j, j),
                };
            }
        }
        Some(lower)
    }

    /// The vector that this lower factor takes to `right`.
    pub fn forward(&self, right: &[f64]) -> Vec<f64> {
        let mut x = right.to_vec();
        for i in 0..self.size {
            let sum: f64 = (0..i).map(|k| self.at(i, k) * x[k]).sum();
            x[i] = (x[i] - sum) / self.at(i, i);
        }
        x
    }

    /// The vector that this positive definite matrix takes to `right`.
    pub fn solve(&self, right: &[f64]) -> Option<Vec<f64>> {
        let lower = self.factor()?;
        let mut x = lower.forward(right);
        for i in (0..self.size).rev() {
            let sum: f64 = (i + 1..self.size).map(|k| lower.at(k, i) * x[k]).sum();
            x[i] = (x[i] - sum) / lower.at(i, i);
        }
        Some(x)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of a line `a + b x`.
    struct Line(Vec<(f64, f64)>);

    impl Residuals for Line {
        type State = Vec<f64>;
        fn rows(&self) -> usize {
            self.0.len()
        }
        fn state(&self, unknowns: &[f64], nudged: Option<(usize, f64)>) -> Vec<f64> {
            let mut state = unknowns.to_vec();
            if let Some((number, by)) = nudged {
                state[number] += by;
            }
            state
        }
        fn weight(&self, _: usize) -> f64 {
            1.0
        }
        fn residual(&self, row: usize, state: &Vec<f64>) -> f64 {
            let (x, y) = self.0[row];
            state[0] + state[1] * x - y
        }
    }

    #[test]
    fn a_line_is_found_in_spite_of_a_row_far_off_and_a_prior_counts_as_a_row() {
        let mut rows: Vec<(f64, f64)> = (0..20).map(|x| (f64::from(x), 3.0 + 0.5 * f64::from(x))).collect();
        rows[7].1 += 1000.0;
        let wide = RobustPrior { means: &[0.0, 0.0], std_devs: &[1e3, 1e3], far: 0.1 };
        let found = minimise(&Line(rows), wide, &[0.0, 0.0]);
        assert!(
            (found.unknowns[0] - 3.0).abs() < 0.05 && (found.unknowns[1] - 0.5).abs() < 0.01,
            "{found:?}"
        );
        // One row y = 2 of weight 1 and a prior 0 +- 1: the mean of both, and the spread of two measurements.
        let one = RobustPrior { means: &[0.0, 0.0], std_devs: &[1.0, 1.0], far: 1e9 };
        let found = minimise(&Line(vec![(0.0, 2.0)]), one, &[0.0, 0.0]);
        assert!((found.unknowns[0] - 1.0).abs() < 1e-6 && found.unknowns[1].abs() < 1e-9);
        assert!((found.std_devs()[0] - 0.5f64.sqrt()).abs() < 1e-6, "{:?}", found.std_devs());
    }

    #[test]
    fn a_matrix_that_is_not_positive_definite_solves_nothing() {
        let mut matrix = NormalMatrix::zero(2);
        *matrix.at_mut(0, 0) = 1.0;
        assert_eq!(matrix.solve(&[1.0, 1.0]), None);
    }
}
