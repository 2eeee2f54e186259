//! Checks of the keys of pictures in the table `[data]`.

use crate::data::DataConfig;
use crate::{Error, Result};

impl DataConfig {
    /// Checks that pictures can be cut and resized as the keys say.
    pub(crate) fn check_pictures(&self) -> Result<()> {
        let DataConfig { picture_size, resize, .. } = *self;
        let wrong = |what: String| Err(Error(what));
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
        self.check_crop_limits()
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
