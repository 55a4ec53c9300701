// Package storage measures what shared memory has to do with disks, beside what the disk can do
// without a DSM.
//
// Checkpoints: how fast a job saves its memory and begins with it again (Save, Restore), beside the
// same bytes by direct input and output to and from as many files (Floor).
//
// Reading: how fast a program reads a file that only another node has (ReadResult). The other
// designs are bare programs, copies of the running executable (Play): one at the storage side,
// which reads the file and writes it to a TCP connection, and one at the reader's side, which
// receives it. They have as many reads in flight as the shared memory. All of them add up all words
// that they read, and a wrong sum is an error. Each is measured by three figures, those of Koukis
// and Koziris, "Efficient block device sharing over Myrinet with memory bypass" (gmblock): the
// bandwidth, the processor time of either side per byte, and by how much a program at the storage
// side slows down that is bound by its memory.
package storage
