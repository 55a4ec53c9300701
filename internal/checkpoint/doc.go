// Package checkpoint is the format of checkpoints on disk: what a directory of them holds, how one
// is written so that no crash can break it, and how it is read and checked. It knows nothing of
// daemons, and reads and writes no memory that is shared.
//
// A directory has the checkpoints of one job, with ascending sequence numbers:
//
//	checkpoint-000012.json     the manifest of checkpoint 12
//	pages-000012-0003.dsm      the part of it that rank 3 wrote
//	lock                       locked (flock) by the job that writes here
//
// All ranks write parts into the directory, which they share. Files with other names are left
// alone. Names that end in .tmp are those of files that are not complete.
//
// # Parts
//
// A part has pages, and then an index. The page in slot i begins at byte i * PageBytes, and the
// index behind the last slot. An entry of the index has 24 bytes, little endian:
//
//	bytes  0 to 3    number of the memory, in the list of the manifest, from 0
//	bytes  4 to 7    CRC-32C of the page
//	bytes  8 to 15   number of the page in that memory, from 0
//	bytes 16 to 23   slot; all ones: the page is zeros and has no slot
//
// # Manifests
//
// A checkpoint is whole, or incremental to an earlier one, its base. In a whole one a page without
// an entry is zeros, unless the manifest says that its memory begins with something else. In an
// incremental one it is as in the base. The manifest lists all parts that are needed, oldest first:
// those of the base, then its own. That list is the chain. An entry of a later sequence overrides
// those of earlier ones. When two parts of one sequence have the same page, either is right.
//
// A manifest is JSON that people can read. Its last line has the SHA-256 of everything above. It
// has the CRC of every index, and an index has that of every page. So no altered byte goes
// unnoticed.
//
// # What a crash leaves
//
// A checkpoint exists when its manifest has its final name. Store.Commit first makes the parts and
// the manifest durable, and their names, and then renames the manifest. Store.Sweep makes the
// removal of manifests durable before it removes a part. So every manifest that a crash leaves is
// that of a whole checkpoint. The tests replay crashes after each write, in which writes that were
// not synced are lost, torn or reordered (TestCrashes).
//
// All functions and methods may be called from any goroutine, unless they say otherwise.
package checkpoint
