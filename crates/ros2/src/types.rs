//! The table of known message types, with what their fields become in rgaps. Messages of all other types stay CDR bytes.

use crate::cdr::NumberType::{self, Bool, F32, F64, I16, I32, I64, I8, U16, U32, U64, U8};
use Field::{Array, Data, Fields, Header, List, Text, Texts, Value, Whole};

/// A field of a message type, and what it becomes in rgaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
    /// `std_msgs/Header`: becomes `capture_ns` and `frame_id` of the header.
    Header,
    /// A number: becomes a value of the header.
    Value(&'static str, NumberType),
    /// A text: becomes a value of the header.
    Text(&'static str),
    /// A list of texts: becomes a list in the header.
    Texts(&'static str),
    /// `PointField[]`: becomes a list in the header.
    Fields,
    /// An array of fixed shape, or several members of one type: becomes a part.
    Array(&'static str, NumberType, &'static [u64]),
    /// A sequence of numbers: becomes a part.
    List(&'static str, NumberType),
    /// All numbers of the message: become its bytes, with this shape.
    Whole(NumberType, &'static [u64]),
    /// `uint8[]`, or the text of `std_msgs/String`: becomes the bytes of the message.
    Data(Bytes),
}

/// The CDR type of the field that becomes the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bytes {
    Sequence,
    String,
}

/// A message type.
#[derive(Debug, PartialEq, Eq)]
pub struct Type {
    /// `package/msg/Name`.
    pub name: &'static str,
    /// The hash of the type, as ROS 2 computes it (REP 2016). It is the same from Iron to Lyrical.
    pub hash: &'static str,
    pub(crate) fields: &'static [Field],
}

/// Finds a known type by its name.
pub fn find(name: &str) -> Option<&'static Type> {
    TYPES.iter().find(|known| known.name == name)
}

const POSITION: Field = Array("position", F64, &[3]);
const ORIENTATION: Field = Array("orientation", F64, &[4]);
const COVARIANCE: Field = Array("covariance", F64, &[6, 6]);
const LINEAR: Field = Array("linear", F64, &[3]);
const ANGULAR: Field = Array("angular", F64, &[3]);
const HEIGHT: Field = Value("height", U32);
const WIDTH: Field = Value("width", U32);
const CHILD: Field = Text("child_frame_id");

macro_rules! types {
    ($($name:literal $hash:literal $fields:expr;)*) => {
        pub(crate) const TYPES: &[Type] = &[$(Type { name: $name, hash: $hash, fields: &$fields }),*];
    };
}

types! {
    "std_msgs/msg/String" "RIHS01_df668c740482bbd48fb39d76a70dfd4bd59db1288021743503259e948f6b1a18"
        [Data(Bytes::String)];
    "std_msgs/msg/Header" "RIHS01_f49fb3ae2cf070f793645ff749683ac6b06203e41c891e17701b1cb597ce6a01"
        [Header];
    "std_msgs/msg/Bool" "RIHS01_feb91e995ff9ebd09c0cb3d2aed18b11077585839fb5db80193b62d74528f6c9"
        [Whole(Bool, &[])];
    "std_msgs/msg/Int8" "RIHS01_26525065a403d972cb672f0777e333f0c799ad444ae5fcd79e43d1e73bd0f440"
        [Whole(I8, &[])];
    "std_msgs/msg/Int16" "RIHS01_1dcc3464e47c288a55f943a389d337cdb06804de3f5cd7a266b0de718eee17e5"
        [Whole(I16, &[])];
    "std_msgs/msg/Int32" "RIHS01_b6578ded3c58c626cfe8d1a6fb6e04f706f97e9f03d2727c9ff4e74b1cef0deb"
        [Whole(I32, &[])];
    "std_msgs/msg/Int64" "RIHS01_8cd1048c2f186b6bd9a92472dc1ce51723c0833a221e2b7aecfff111774f4b49"
        [Whole(I64, &[])];
    "std_msgs/msg/UInt8" "RIHS01_6138bd83d8c3569cb80a667db03cfc1629f529fee79d944c39c34e352e72f010"
        [Whole(U8, &[])];
    "std_msgs/msg/UInt16" "RIHS01_08a406e4b022bc22e907f985d6a9e9dd1d4fbecae573549cf49350113e7757b1"
        [Whole(U16, &[])];
    "std_msgs/msg/UInt32" "RIHS01_a5c874829b752bc5fa190024b0ad76f578cc278271e855c7d02a818b3516fb4a"
        [Whole(U32, &[])];
    "std_msgs/msg/UInt64" "RIHS01_fbdc52018fc13755dce18024d1a671c856aa8b4aaf63adfb095b608f98e8c943"
        [Whole(U64, &[])];
    "std_msgs/msg/Float32" "RIHS01_7170d3d8f841f7be3172ce5f4f59f3a4d7f63b0447e8b33327601ad64d83d6e2"
        [Whole(F32, &[])];
    "std_msgs/msg/Float64" "RIHS01_705ba9c3d1a09df43737eb67095534de36fd426c0587779bda2bc51fe790182a"
        [Whole(F64, &[])];
    "geometry_msgs/msg/Vector3" "RIHS01_cc12fe83e4c02719f1ce8070bfd14aecd40f75a96696a67a2a1f37f7dbb0765d"
        [Whole(F64, &[3])];
    "geometry_msgs/msg/Vector3Stamped" "RIHS01_d4829622288cbb443886e7ea94ea5671a3b1be6bab4ad04224432a65f7d7887a"
        [Header, Whole(F64, &[3])];
    "geometry_msgs/msg/Point" "RIHS01_6963084842a9b04494d6b2941d11444708d892da2f4b09843b9c43f42a7f6881"
        [Whole(F64, &[3])];
    "geometry_msgs/msg/PointStamped" "RIHS01_4c0296af86e01e562e9e0405d138a01537247580076c58ea38d7923ac1045897"
        [Header, Whole(F64, &[3])];
    "geometry_msgs/msg/Quaternion" "RIHS01_8a765f66778c8ff7c8ab94afcc590a2ed5325a1d9a076ffff38fbce36f458684"
        [Whole(F64, &[4])];
    "geometry_msgs/msg/QuaternionStamped" "RIHS01_381add86c6c3160644d228ca342182c7fd6c7fab11c7a85ad817a9cc22dbac6e"
        [Header, Whole(F64, &[4])];
    "geometry_msgs/msg/Pose" "RIHS01_d501954e9476cea2996984e812054b68026ae0bfae789d9a10b23daf35cc90fa"
        [POSITION, ORIENTATION];
    "geometry_msgs/msg/PoseStamped" "RIHS01_10f3786d7d40fd2b54367835614bff85d4ad3b5dab62bf8bca0cc232d73b4cd8"
        [Header, POSITION, ORIENTATION];
    "geometry_msgs/msg/PoseWithCovariance" "RIHS01_9a7c0fd234b7f45c6098745ecccd773ca1085670e64107135397aee31c02e1bb"
        [POSITION, ORIENTATION, COVARIANCE];
    "geometry_msgs/msg/PoseWithCovarianceStamped" "RIHS01_26432f9803e43727d3c8f668d1fdb3c630f548af631e2f4e31382371bfea3b6e"
        [Header, POSITION, ORIENTATION, COVARIANCE];
    "geometry_msgs/msg/Twist" "RIHS01_9c45bf16fe0983d80e3cfe750d6835843d265a9a6c46bd2e609fcddde6fb8d2a"
        [LINEAR, ANGULAR];
    "geometry_msgs/msg/TwistStamped" "RIHS01_5f0fcd4f81d5d06ad9b4c4c63e3ea51b82d6ae4d0558f1d475229b1121db6f64"
        [Header, LINEAR, ANGULAR];
    "geometry_msgs/msg/TwistWithCovariance" "RIHS01_49f574f033f095d8b6cd1beaca5ca7925e296e84af1716d16c89d38b059c8c18"
        [LINEAR, ANGULAR, COVARIANCE];
    "geometry_msgs/msg/TwistWithCovarianceStamped" "RIHS01_77b67434531e6529b7a0091357b186b6ebdb17fd9ffd3e0c7ce9d3fb11a44563"
        [Header, LINEAR, ANGULAR, COVARIANCE];
    "geometry_msgs/msg/Accel" "RIHS01_dc448243ded9b1fcbcca24aba0c22f013dae06c354ba2d849571c0a2a3f57ca0"
        [LINEAR, ANGULAR];
    "geometry_msgs/msg/AccelStamped" "RIHS01_ef1df9eabae0a708cc049a061ebcddc4e2a5f745730100ba680e086a9698b165"
        [Header, LINEAR, ANGULAR];
    "geometry_msgs/msg/Wrench" "RIHS01_018e8519d57c16adbe97c9fe1460ef21fec7e31bc541de3d653a35895677ce52"
        [Array("force", F64, &[3]), Array("torque", F64, &[3])];
    "geometry_msgs/msg/WrenchStamped" "RIHS01_8dc3deaf06b2ab281f9f9a742a8961c328ca7cec16e3fd6586d3a5c83fa78f77"
        [Header, Array("force", F64, &[3]), Array("torque", F64, &[3])];
    "geometry_msgs/msg/Transform" "RIHS01_beb83fbe698636351461f6f35d1abb20010c43d55374d81bd041f1ba2581fddc"
        [Array("translation", F64, &[3]), Array("rotation", F64, &[4])];
    "geometry_msgs/msg/TransformStamped" "RIHS01_0a241f87d04668d94099cbb5ba11691d5ad32c2f29682e4eb5653424bd275206"
        [Header, CHILD, Array("translation", F64, &[3]), Array("rotation", F64, &[4])];
    "nav_msgs/msg/Odometry" "RIHS01_3cc97dc7fb7502f8714462c526d369e35b603cfc34d946e3f2eda2766dfec6e0"
        [Header, CHILD, POSITION, ORIENTATION, Array("pose_covariance", F64, &[6, 6]), LINEAR, ANGULAR, Array("twist_covariance", F64, &[6, 6])];
    "sensor_msgs/msg/Image" "RIHS01_d31d41a9a4c4bc8eae9be757b0beed306564f7526c88ea6a4588fb9582527d47"
        [Header, HEIGHT, WIDTH, Text("encoding"), Value("is_bigendian", U8), Value("step", U32), Data(Bytes::Sequence)];
    "sensor_msgs/msg/CompressedImage" "RIHS01_15640771531571185e2efc8a100baf923961a4d15d5569652e6cb6691e8e371a"
        [Header, Text("format"), Data(Bytes::Sequence)];
    "sensor_msgs/msg/CameraInfo" "RIHS01_b3dfd68ff46c9d56c80fd3bd4ed22c7a4ddce8c8348f2f59c299e73118e7e275"
        [Header, HEIGHT, WIDTH, Text("distortion_model"), List("d", F64), Array("k", F64, &[3, 3]), Array("r", F64, &[3, 3]), Array("p", F64, &[3, 4]), Value("binning_x", U32), Value("binning_y", U32), Value("roi_x_offset", U32), Value("roi_y_offset", U32), Value("roi_height", U32), Value("roi_width", U32), Value("roi_do_rectify", Bool)];
    "sensor_msgs/msg/Imu" "RIHS01_7d9a00ff131080897a5ec7e26e315954b8eae3353c3f995c55faf71574000b5b"
        [Header, ORIENTATION, Array("orientation_covariance", F64, &[3, 3]), Array("angular_velocity", F64, &[3]), Array("angular_velocity_covariance", F64, &[3, 3]), Array("linear_acceleration", F64, &[3]), Array("linear_acceleration_covariance", F64, &[3, 3])];
    "sensor_msgs/msg/PointCloud2" "RIHS01_9198cabf7da3796ae6fe19c4cb3bdd3525492988c70522628af5daa124bae2b5"
        [Header, HEIGHT, WIDTH, Fields, Value("is_bigendian", Bool), Value("point_step", U32), Value("row_step", U32), Data(Bytes::Sequence), Value("is_dense", Bool)];
    "sensor_msgs/msg/LaserScan" "RIHS01_64c191398013af96509d518dac71d5164f9382553fce5c1f8cca5be7924bd828"
        [Header, Value("angle_min", F32), Value("angle_max", F32), Value("angle_increment", F32), Value("time_increment", F32), Value("scan_time", F32), Value("range_min", F32), Value("range_max", F32), List("ranges", F32), List("intensities", F32)];
    "sensor_msgs/msg/JointState" "RIHS01_a13ee3a330e346c9d87b5aa18d24e11690752bd33a0350f11c5882bc9179260e"
        [Header, Texts("name"), List("position", F64), List("velocity", F64), List("effort", F64)];
}
