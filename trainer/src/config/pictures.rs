//! Checks of the keys of pictures.

use super::Config;
use crate::{Error, Result};

/// The greatest side that pictures are resized to.
const LARGEST: usize = 16_384;

impl Config {
    /// Checks that pictures can be cut and resized as the keys say, and that their values stay finite.
    pub(super) fn check_pictures(&self) -> Result<()> {
        let Config { picture_size, resize, test_share, .. } = *self;
        let wrong = |what: String| Err(Error::Config(what));
        for (key, side) in [("picture_size", picture_size), ("resize", resize)] {
            if !(1..=LARGEST).contains(&side) {
                return wrong(format!("`{key}` is {side}; it must be 1 to {LARGEST}"));
            }
        }
        if self.data == "pictures" && resize < picture_size {
            return wrong(format!(
                "`resize` is {resize} and `picture_size` {picture_size}, which is cut out of that; set `resize` to {picture_size} or more"
            ));
        }
        if self.random_resized_crop && self.data != "pictures" {
            return wrong(format!(
                "`random_resized_crop` is for data \"pictures\", and the data is \"{}\"; `crop_padding` moves any picture",
                self.data
            ));
        }
        if self.random_resized_crop && self.crop_padding > 0 {
            return wrong(
                "`random_resized_crop` and `crop_padding` both move pictures: set one of them".into(),
            );
        }
        if !(test_share > 0.0 && test_share < 1.0) {
            return wrong(format!("`test_share` is {test_share}; it must be more than 0 and less than 1"));
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
        finite("picture_mean", self.picture_mean, f64::NEG_INFINITY)?;
        finite("picture_std", self.picture_std, 0.0)
    }

    fn check_crop_limits(&self) -> Result<()> {
        for (key, [least, most], limit) in
            [("crop_scale", self.crop_scale, 1.0), ("crop_ratio", self.crop_ratio, 1000.0)]
        {
            if !(least > 0.0 && least <= most && most <= limit) {
                return Err(Error::Config(format!(
                    "`{key}` is [{least}, {most}]; it must be the least and the greatest value, more than 0 and at most {limit}"
                )));
            }
        }
        Ok(())
    }
}
