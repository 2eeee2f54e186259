//! Checks of the keys of pictures in the table `[data]`.

use crate::data::DataConfig;
use crate::{Error, Result};

/// The greatest side that pictures are resized to.
const LARGEST: usize = 16_384;

impl DataConfig {
    /// Checks that pictures can be cut and resized as the keys say, and that their values stay finite.
    pub(crate) fn check_pictures(&self) -> Result<()> {
        let DataConfig { picture_size, resize, test_share, .. } = *self;
        let wrong = |what: String| Err(Error(what));
        for (key, side) in [("data.picture_size", picture_size), ("data.resize", resize)] {
            if !(1..=LARGEST).contains(&side) {
                return wrong(format!("`{key}` is {side}; it must be 1 to {LARGEST}"));
            }
        }
        if self.name == "pictures" && resize < picture_size {
            return wrong(format!(
                "`data.resize` is {resize} and `data.picture_size` {picture_size}, which is cut out of that; set `data.resize` to {picture_size} or more"
            ));
        }
        if self.random_resized_crop && self.name != "pictures" {
            return wrong(format!(
                "`data.random_resized_crop` is for data \"pictures\", and the data is \"{}\"; `data.crop_padding` moves any picture",
                self.name
            ));
        }
        if self.random_resized_crop && self.crop_padding > 0 {
            return wrong(
                "`data.random_resized_crop` and `data.crop_padding` both move pictures: set one of them"
                    .into(),
            );
        }
        if !(test_share > 0.0 && test_share < 1.0) {
            return wrong(format!(
                "`data.test_share` is {test_share}; it must be more than 0 and less than 1"
            ));
        }
        self.check_crop_limits()?;
        let finite = |key: &str, values: [f64; 3], least: f64| match values
            .iter()
            .find(|value| !value.is_finite() || **value <= least)
        {
            Some(value) if least < 0.0 => wrong(format!("`{key}` has {value}; it must be finite")),
            Some(value) => wrong(format!("`{key}` has {value}; it must be more than 0")),
            None => Ok(()),
        };
        finite("data.picture_mean", self.picture_mean, f64::NEG_INFINITY)?;
        finite("data.picture_std", self.picture_std, 0.0)
    }

    fn check_crop_limits(&self) -> Result<()> {
        for (key, [least, most], limit) in
            [("data.crop_scale", self.crop_scale, 1.0), ("data.crop_ratio", self.crop_ratio, 1000.0)]
        {
            if !(least > 0.0 && least <= most && most <= limit) {
                return Err(Error(format!(
                    "`{key}` is [{least}, {most}]; it must be the least and the greatest value, more than 0 and at most {limit}"
                )));
            }
        }
        Ok(())
    }
}
