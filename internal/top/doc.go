// Package top is `dsmd top`: what programs wait for now, and what their nodes do.
//
// Daemons count since their start. So the package takes two Samples of each, and Rates is what has
// happened in between: of each program, of each allocation, lock, barrier and reduction, and of
// each node. Text shows it once; Screen shows it in a terminal, again and again, and takes keys.
//
// The package asks nobody. Who calls it has asked the daemons, as any observer may. A daemon may be
// anybody's, so whatever it says is made printable here, and no number that it gives does harm.
package top
