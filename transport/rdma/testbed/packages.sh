# What the test bed takes from Debian: QEMU, a kernel, and the guest's userland. Sourced by run.
#
# Nothing is installed. Packages are downloaded by an apt with its own sources, lists and (empty) list of installed packages, so that
# a package comes with all it depends on, and neither root nor this machine's own packages have a part in it; apt checks signatures and
# digests. They are unpacked into folders of the cache, each of which is complete or not there.
#
# In: cache, codename, suite, mirror, work; say and die of run.

# downloadSeconds bounds each call of apt.
downloadSeconds=300

# logged WHAT COMMAND... runs a command silently; if it fails, says what it was for and what it said last.
logged() {
	local what=$1
	shift
	timeout "$downloadSeconds" "$@" >"$work/log" 2>&1 </dev/null || {
		tail -n 5 "$work/log" >&2
		die "$what from $mirror failed; RDMA_VM_MIRROR names another mirror"
	}
}

# ask SUITE COMMAND... runs a command of apt that knows one suite of Debian and nothing of this machine.
ask() { APT_CONFIG=$cache/apt-$1/apt.conf "${@:2}"; }

# readLists SUITE fetches the suite's list of packages, unless it was fetched within the last twelve hours.
readLists() {
	local dir=$cache/apt-$1
	if [[ -e $dir/ready && ! $(find "$dir/ready" -mmin +720) ]]; then
		return 0
	fi
	say "reading the list of packages of $1"
	mkdir -p "$dir/lists/partial" "$dir/archives/partial"
	echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $1 main" >"$dir/sources.list"
	: >"$dir/status"
	cat >"$dir/apt.conf" <<-CONF
		Dir::Etc::SourceList "$dir/sources.list";
		Dir::Etc::SourceParts "-";
		Dir::State::Lists "$dir/lists";
		Dir::State::Status "$dir/status";
		Dir::Cache "$dir";
		Dir::Cache::Archives "$dir/archives";
		Acquire::Languages "none";
		Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
		Acquire::Retries "3";
		Acquire::http::Timeout "30";
		Acquire::https::Timeout "30";
		APT::Sandbox::User "";
		APT::Install-Recommends "false";
		Debug::NoLocking "true";
	CONF
	# Without this Error-Mode, apt-get takes an unreachable mirror for a success.
	logged "reading the list of packages of $1" env APT_CONFIG="$dir/apt.conf" apt-get -q -o APT::Update::Error-Mode=any update
	touch "$dir/ready"
}

# closure SUITE DIR PACKAGE... downloads packages, and all they depend on, into DIR.
closure() {
	local suite=$1 dir=$2
	shift 2
	readLists "$suite"
	logged "downloading $*" env APT_CONFIG="$cache/apt-$suite/apt.conf" apt-get -qq -y --download-only install "$@"
	mkdir -p "$dir"
	mv "$cache/apt-$suite"/archives/*.deb "$dir"/
}

# only SUITE DIR PACKAGE... downloads just these packages into DIR.
only() {
	local suite=$1 dir=$2
	shift 2
	readLists "$suite"
	mkdir -p "$dir"
	(cd "$dir" && logged "downloading $*" env APT_CONFIG="$cache/apt-$suite/apt.conf" apt-get -qq download "$@")
}

# unpack DIR DEB... unpacks packages into a tree where /bin, /sbin and /lib are those of /usr.
unpack() {
	local dir=$1 d deb
	shift
	for d in bin sbin lib lib64; do
		mkdir -p "$dir/usr/$d"
		[[ -e $dir/$d ]] || ln -s "usr/$d" "$dir/$d"
	done
	for deb; do
		dpkg-deb --fsys-tarfile "$deb" | tar -x --no-same-owner --keep-directory-symlink \
			--exclude='./usr/share/doc/*' --exclude='./usr/share/man/*' --exclude='./usr/share/locale/*' \
			--exclude='./usr/lib/debug/*' -C "$dir"
	done
}

# folder NAME MAKER makes the cache's folder NAME, if there is none, by calling MAKER with a new folder, which takes the name when it is
# complete.
folder() {
	[[ ! -d $cache/$1 ]] || return 0
	rm -rf "$cache/$1.new"
	mkdir -p "$cache/$1.new"
	"$2" "$cache/$1.new"
	rm -rf "$cache/$1.new/debs"
	mv "$cache/$1.new" "$cache/$1"
}

# makeQemu DIR: QEMU with its libraries, firmware and loader, which run beside whatever this machine has.
makeQemu() {
	say "downloading QEMU"
	closure "$codename" "$1/debs" qemu-system-x86
	unpack "$1" "$1"/debs/*.deb
}

# userland is what the guest has beside its kernel: the tools of RDMA, and a shell to start them from.
userland=(busybox-static bash iproute2 ibverbs-providers ibverbs-utils rdmacm-utils perftest)

# makeUserland DIR: the guest's root.
makeUserland() {
	local root=$1
	say "downloading the guest's userland"
	closure "$codename" "$root/debs" "${userland[@]}"
	unpack "$root" "$root"/debs/*.deb
	# What comes along and nobody in the guest needs; all of it would be in the guest's memory.
	rm -rf "$root"/usr/share "$root"/usr/lib/x86_64-linux-gnu/{gconv,security,perl*,engines-3,ossl-modules} \
		"$root"/usr/lib/{apt,init,tmpfiles.d,systemd,udev,modules-load.d,pcrlock.d} "$root"/etc/{pam.d,security,apt}
	mkdir -p "$root"/{proc,sys,dev,run,tmp,root,var/tmp,etc}
	echo 'root:x:0:0:root:/root:/bin/sh' >"$root/etc/passwd"
	echo 'root:x:0:' >"$root/etc/group"
	printf '127.0.0.1 localhost\n::1 localhost\n' >"$root/etc/hosts"
	printf '/usr/lib/x86_64-linux-gnu\n/usr/local/lib\n' >"$root/etc/ld.so.conf"
}

# makeHeaders DIR: what a C compiler needs to build internal/verbs, with the libraries of the guest.
makeHeaders() {
	say "downloading the headers of libibverbs and librdmacm"
	only "$codename" "$1/debs" libibverbs-dev librdmacm-dev
	unpack "$1" "$1"/debs/*.deb
	cp -P "$cache/$root"/usr/lib/x86_64-linux-gnu/lib{ibverbs,rdmacm,nl-3,nl-route-3}.so.* "$1/usr/lib/x86_64-linux-gnu/"
}

# makeKernel DIR: the suite's newest kernel, ready for QEMU to start (vmlinux), with the modules that image.sh chooses from.
makeKernel() {
	local dir=$1 image packages deb
	say "downloading the kernel of $suite"
	readLists "$suite"
	image=$(ask "$suite" apt-cache depends linux-image-amd64 | sed -nE 's/^ *Depends: (linux-image-[0-9].*)/\1/p' | head -n 1)
	[[ $image ]] || die "there is no linux-image-amd64 in $suite"
	# Newer packaging splits the image into -binary and -modules.
	packages=$(ask "$suite" apt-cache depends "$image" | sed -nE 's/^ *Depends: (linux-(binary|modules)-[0-9].*)/\1/p' | sort -u)
	# shellcheck disable=SC2086 # several words
	only "$suite" "$dir/debs" ${packages:-$image}
	for deb in "$dir"/debs/*.deb; do
		dpkg-deb --fsys-tarfile "$deb" | tar -x --no-same-owner -C "$dir" --wildcards \
			'*/vmlinuz*' '*/modules.builtin' '*/kernel/drivers/infiniband/*' '*/kernel/drivers/virtio/*' '*/kernel/drivers/char/*' \
			'*/kernel/drivers/net/veth.ko*' '*/kernel/drivers/net/virtio_net.ko*' '*/kernel/drivers/net/net_failover.ko*' \
			'*/kernel/net/core/*' '*/kernel/net/ipv4/*' '*/kernel/net/ipv6/*' '*/kernel/lib/*' '*/kernel/crypto/*' \
			'*/kernel/arch/x86/crypto/*' '*/kernel/fs/configfs/*' 2>/dev/null || : # no package has all of them
	done
	uncompress "$(find "$dir" -name 'vmlinuz*' -print -quit)" "$dir/vmlinux"
}

# uncompress VMLINUZ VMLINUX takes the ELF file out of a kernel image. QEMU starts it at its PVH entry point, which spares the guest the
# firmware and the decompression, both slow under emulation. The image's header says where it lies (Linux, arch/x86/boot.rst); its last
# four bytes are its size. What can't be taken out is started as it is.
uncompress() {
	local image=$1 start length
	[[ $image ]] || die "there is no kernel in the packages of $suite"
	start=$((($(unsigned 1 497 "$image") + 1) * 512 + $(unsigned 4 584 "$image")))
	length=$(($(unsigned 4 588 "$image") - 4))
	tail -c +$((start + 1)) "$image" | head -c "$length" >"$2.packed" || : # tail has more to write than head takes
	case $(od -An -tx1 -N4 "$2.packed" | tr -d ' ') in
	fd377a58) xz -dc "$2.packed" >"$2" ;;
	28b52ffd)
		command -v zstd >/dev/null || die "the kernel of $suite needs zstd; as root: apt-get install zstd"
		zstd -dcq "$2.packed" >"$2"
		;;
	*) cp "$image" "$2" ;;
	esac
	rm -f "$2.packed"
}

# unsigned BYTES OFFSET FILE writes the number of so many bytes at an offset.
unsigned() { od -An "-tu$1" -j"$2" -N"$1" "$3" | tr -d ' '; }
