//! Finds what JSON does not keep: numbers that are not finite (written as `null`), and `Some` of a
//! value that is written as `null`.

use serde::de::DeserializeOwned;
use serde::ser::{
    Error as _, Serialize, SerializeMap, SerializeSeq, SerializeStruct, SerializeStructVariant,
    SerializeTuple, SerializeTupleStruct, SerializeTupleVariant, Serializer,
};
use serde_json::Error;

/// Numbers and, with `nulls`, what options hold.
pub(crate) fn check<T: Serialize + ?Sized>(value: &T, nulls: bool) -> Result<(), Error> {
    value.serialize(Check { nulls }).map(drop)
}

/// Fails also where a replay could not return the same value.
pub(crate) fn encode<T: Serialize + DeserializeOwned>(
    value: &T,
) -> Result<String, (&'static str, Error)> {
    let refuse = |e| ("the result cannot be stored as JSON", e);
    check(value, true).map_err(refuse)?;
    let json = serde_json::to_string(value).map_err(refuse)?;
    let back = serde_json::from_str::<T>(&json);
    back.map_err(|e| ("the result could not be read back from JSON", e)).map(|_| json)
}

/// True if JSON would be `null`.
#[derive(Clone, Copy)]
struct Check {
    nulls: bool,
}

fn finite(is_finite: bool) -> Result<bool, Error> {
    if is_finite { Ok(false) } else { Err(Error::custom("JSON has no NaN and no infinity")) }
}

macro_rules! never_null {
    ($($method:ident: $type:ty),* $(,)?) => {$(
        fn $method(self, _: $type) -> Result<bool, Error> {
            Ok(false)
        }
    )*};
}

macro_rules! parts {
    ($($part:ident: $method:ident($($name:ident)?)),* $(,)?) => {$(
        impl $part for Check {
            type Ok = bool;
            type Error = Error;

            fn $method<T: Serialize + ?Sized>(
                &mut self,
                $($name: &'static str,)?
                value: &T,
            ) -> Result<(), Error> {
                value.serialize(*self).map(drop)
            }

            fn end(self) -> Result<bool, Error> {
                Ok(false)
            }
        }
    )*};
}

parts! {
    SerializeSeq: serialize_element(),
    SerializeTuple: serialize_element(),
    SerializeTupleStruct: serialize_field(),
    SerializeTupleVariant: serialize_field(),
    SerializeStruct: serialize_field(_name),
    SerializeStructVariant: serialize_field(_name),
}

impl SerializeMap for Check {
    type Ok = bool;
    type Error = Error;

    fn serialize_key<T: Serialize + ?Sized>(&mut self, key: &T) -> Result<(), Error> {
        key.serialize(*self).map(drop)
    }

    fn serialize_value<T: Serialize + ?Sized>(&mut self, value: &T) -> Result<(), Error> {
        value.serialize(*self).map(drop)
    }

    fn end(self) -> Result<bool, Error> {
        Ok(false)
    }
}

impl Serializer for Check {
    type Ok = bool;
    type Error = Error;
    type SerializeSeq = Self;
    type SerializeTuple = Self;
    type SerializeTupleStruct = Self;
    type SerializeTupleVariant = Self;
    type SerializeMap = Self;
    type SerializeStruct = Self;
    type SerializeStructVariant = Self;

    never_null! {
        serialize_bool: bool,
        serialize_i8: i8,
        serialize_i16: i16,
        serialize_i32: i32,
        serialize_i64: i64,
        serialize_i128: i128,
        serialize_u8: u8,
        serialize_u16: u16,
        serialize_u32: u32,
        serialize_u64: u64,
        serialize_u128: u128,
        serialize_char: char,
        serialize_str: &str,
        serialize_bytes: &[u8],
    }

    fn serialize_f32(self, number: f32) -> Result<bool, Error> {
        finite(number.is_finite())
    }

    fn serialize_f64(self, number: f64) -> Result<bool, Error> {
        finite(number.is_finite())
    }

    fn serialize_none(self) -> Result<bool, Error> {
        Ok(true)
    }

    fn serialize_some<T: Serialize + ?Sized>(self, value: &T) -> Result<bool, Error> {
        if value.serialize(self)? && self.nulls {
            return Err(Error::custom("JSON does not tell `Some` of this value from `None`"));
        }
        Ok(false)
    }

    fn serialize_unit(self) -> Result<bool, Error> {
        Ok(true)
    }

    fn serialize_unit_struct(self, _: &'static str) -> Result<bool, Error> {
        Ok(true)
    }

    fn serialize_unit_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
    ) -> Result<bool, Error> {
        Ok(false)
    }

    fn serialize_newtype_struct<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        value: &T,
    ) -> Result<bool, Error> {
        value.serialize(self)
    }

    fn serialize_newtype_variant<T: Serialize + ?Sized>(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        value: &T,
    ) -> Result<bool, Error> {
        value.serialize(self).map(|_| false)
    }

    fn serialize_seq(self, _: Option<usize>) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_tuple(self, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_tuple_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_tuple_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_map(self, _: Option<usize>) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_struct(self, _: &'static str, _: usize) -> Result<Self, Error> {
        Ok(self)
    }

    fn serialize_struct_variant(
        self,
        _: &'static str,
        _: u32,
        _: &'static str,
        _: usize,
    ) -> Result<Self, Error> {
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[derive(serde::Serialize)]
    struct Deep<T> {
        of: Vec<BTreeMap<&'static str, (u8, T)>>,
    }

    fn is_kept<T: Serialize + Clone>(value: T) -> bool {
        let alone = check(&value, true).is_ok();
        let deep = Deep { of: vec![BTreeMap::new(), BTreeMap::from([("a", (1, value.clone()))])] };
        assert_eq!(check(&deep, true).is_ok(), alone);
        assert_eq!(check(&Ok::<_, ()>(value), true).is_ok(), alone);
        alone
    }

    /// With the feature `float_roundtrip` of `serde_json`.
    #[test]
    fn json_keeps_every_finite_number() {
        let again = |x: f64| serde_json::from_slice(&serde_json::to_vec(&x).unwrap()).unwrap();
        let mut bits = 0x9e37_79b9_7f4a_7c15_u64;
        for _ in 0..20_000 {
            bits = bits.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let price = (bits >> 40) as f64 / 97.0;
            for x in [price, f64::from_bits(bits)].into_iter().filter(|x| x.is_finite()) {
                let back: f64 = again(x);
                assert_eq!(back.to_bits(), x.to_bits(), "{x}");
            }
        }
    }

    #[test]
    fn what_json_does_not_keep_is_found_at_every_depth() {
        assert!(is_kept(1.5_f64) && is_kept(f32::MAX) && is_kept(()) && is_kept("NaN"));
        assert!(is_kept(None::<u8>) && is_kept(Some(0)) && is_kept(Some(Some("null"))));
        assert!(is_kept(Some(vec![None::<u8>])) && is_kept(serde_json::Value::Null));
        assert!(!is_kept(f32::NAN) && !is_kept(f32::INFINITY));
        for number in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            assert!(!is_kept(number) && !is_kept(Some(number)));
            assert!(check(&number, false).is_err());
        }
        assert!(!is_kept(Some(None::<u8>)) && !is_kept(Some(())) && !is_kept(Some(Some(()))));
        assert!(!is_kept(Some(serde_json::Value::Null)));
        assert!(check(&Some(None::<u8>), false).is_ok(), "of a request, both are the same");
    }
}
