package clientsetup

import "slices"

// IsPublicVariable reports whether the value of an environment variable may be visible in commands.
func IsPublicVariable(name string) bool { return slices.Contains(publicVariables, name) }
