//! Textures and surfaces.

use super::driver;
use crate::abi::{In, Out};
use crate::handles::arrays::{self, Texture};
use rgaps_remoting::driver_abi::ResourceDescription;
use rgaps_remoting::{Code, SAMPLER_BYTES, VIEW_BYTES};

driver! {
    fn cuTexObjectCreate(
        texture: Out<u64>, of: In<ResourceDescription>, sampler: In<[u8; SAMPLER_BYTES]>, view: In<[u8; VIEW_BYTES]>
    ) {
        texture.check()?;
        let view = if view.is_null() { Vec::new() } else { view.get()?.to_vec() };
        let of = Texture { resource: (&of.get()?).try_into()?, view };
        texture.put(arrays::create_texture(of, &sampler.get()?)?)
    }

    fn cuTexObjectDestroy(texture: u64) {
        arrays::destroy_texture(texture)
    }

    fn cuTexObjectGetResourceDesc(to: Out<ResourceDescription>, texture: u64) {
        to.put((&arrays::texture(texture)?.resource).into())
    }

    fn cuTexObjectGetTextureDesc(to: Out<[u8; SAMPLER_BYTES]>, texture: u64) {
        to.put(arrays::sampler(texture)?)
    }

    fn cuTexObjectGetResourceViewDesc(to: Out<[u8; VIEW_BYTES]>, texture: u64) {
        to.put(arrays::texture(texture)?.view.try_into().map_err(|_| Code::INVALID_VALUE)?)
    }

    fn cuSurfObjectCreate(surface: Out<u64>, of: In<ResourceDescription>) {
        surface.check()?;
        surface.put(arrays::create_surface((&of.get()?).try_into()?)?)
    }

    fn cuSurfObjectDestroy(surface: u64) {
        arrays::destroy_surface(surface)
    }

    fn cuSurfObjectGetResourceDesc(to: Out<ResourceDescription>, surface: u64) {
        to.put((&arrays::surface(surface)?).into())
    }
}
