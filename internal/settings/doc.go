// Package settings is the one table of a daemon's settings, and the one way to find a value.
//
// A setting has one name. As a flag it is --NAME; in the environment it is DSMD_NAME, in capitals
// and with underscores for hyphens; in the configuration file, which is YAML, it is the key NAME.
// The first of flag, environment, file and default that has a value counts. All four are read by
// the same parser with the same range, so that a value which is wrong in one place is wrong in all,
// and the error says where it stands: the flag, the variable, or file and line.
//
//	v := settings.New()
//	v.Register(cmd.Flags(), settings.Serve)            // the flags, from the table
//	err := v.Load(cmd.Flags(), settings.Sources{...})  // environment and file, under them
//	v.Origin("region")                                 // which of them it was
//
// A file in which anything is not understood is refused as a whole: an unknown key is most often a
// mistyped one, and a daemon that ignored it would run with a default that nobody has chosen.
//
// The table itself is in table.go, what a value looks like in kinds.go, the search for values in
// load.go, the file's syntax in file.go. docs/configuration.md shows the table; a test compares the
// two.
package settings
