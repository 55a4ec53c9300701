# The guest's initial file system. Sourced by run.
#
# It is two archives, which the kernel unpacks over each other: the base, which is the same for every guest and cached, and the files of
# one run.
#
# In: here, cache, root, kernel, work; say and die of run.

# modules are loaded by the guest in this order, after what they depend on; what is built into the kernel is left out.
modules=(virtio_pci virtio_console virtio_rng virtio_net veth crc32_generic crc32_pclmul crc32c_generic crc32c_intel
	ib_uverbs rdma_ucm rdma_rxe)

# pack DIR writes a folder as an archive that the kernel can unpack.
pack() { (cd "$1" && find . -mindepth 1 | "$cache/$root/bin/busybox" cpio -o -H newc 2>/dev/null); }

# addModule STAGE NAME puts a module, after those it depends on, on the guest's list. Names may have - for _.
addModule() {
	local stage=$1 name=${2//-/_} file dep deps
	[[ ! ${added[$name]:-} ]] || return 0
	added[$name]=1
	file=$(find "$cache/$kernel" -name "${name//_/[-_]}.ko*" -print -quit)
	if [[ ! $file ]]; then
		grep -qs "/${name//_/[-_]}\.ko" "$cache/$kernel"/{usr/,}lib/modules/*/modules.builtin ||
			case $name in crc32*) return 0 ;; *) die "the kernel has no module $name; try another --kernel" ;; esac
		return 0
	fi
	case $file in
	*.xz) xz -dc "$file" ;;
	*.zst) zstd -dcq "$file" ;;
	*) cat "$file" ;;
	esac >"$stage/rdma-vm/modules/$name.ko"
	deps=$(tr '\0' '\n' <"$stage/rdma-vm/modules/$name.ko" | sed -n 's/^depends=//p')
	for dep in ${deps//,/ }; do addModule "$stage" "$dep"; done
	echo "$name" >>"$stage/rdma-vm/load"
}

# makeBase FILE makes the archive that is the same for every guest.
makeBase() {
	local stage=$work/stage name
	local -A added=()
	say "making the guest's file system"
	mkdir -p "$stage/rdma-vm/modules"
	for name in "${modules[@]}"; do addModule "$stage" "$name"; done
	cp "$here/init" "$stage/init"
	chmod +x "$stage/init"
	cp -a "$cache/$root/." "$stage/"
	pack "$stage" >"$1.new"
	rm -f "${1%-*}"-*.cpio # of older versions
	mv "$1.new" "$1"
	rm -rf "$stage"
}

# addFile DIR SOURCE DESTINATION puts a file or folder, and the shared libraries that its executables need and the guest lacks, into the
# files of a run.
addFile() {
	local dir=$1 file
	mkdir -p "$dir/${3%/*}"
	cp -rL "$2" "$dir/$3"
	while IFS= read -r -d '' file; do addLibraries "$dir" "$file"; done < <(find -L "$2" -type f -perm /111 -print0)
}

addLibraries() {
	local lib
	for lib in $(ldd "$2" 2>/dev/null | grep -oE '/[^ ]+' || :); do
		if [[ -e $lib && ! -e $cache/$root/$lib && ! -e $1/$lib ]]; then
			mkdir -p "$1/${lib%/*}"
			cp -L "$lib" "$1/$lib"
		fi
	done
}

# quote WORD... writes words as a shell reads them.
quote() { local s; for s; do printf " '%s'" "${s//\'/\'\\\'\'}"; done; }
