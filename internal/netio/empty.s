// With a file in assembly in the package the compiler takes functions without a body, such as those
// of the runtime that priority.go names.
