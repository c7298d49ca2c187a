/* Not a module, only what `modinfo` reads of one. */
__attribute__((section(".modinfo"), used)) static const char info[] =
    "version=" VERSION "\0license=Dual MIT/GPL\0description=stand-in\0name=nvidia\0vermagic=any";
