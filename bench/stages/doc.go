// Package stages says where the time of a fault goes, from the timestamps that the daemons take
// themselves.
//
// A daemon that is started with --stages notes when each page has passed which stage of a fault,
// and tells at /debug/stages. Programs and daemons of one machine share one clock, so what the
// program, the daemon that asks and the daemon that answers have noted of a fault can be put in one
// order: Match does so, and Summarise makes the table of it. The stages that are reported follow
// from each other, and together are all of the access: no time is counted twice or left out.
package stages
