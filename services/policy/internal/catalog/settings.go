package catalog

import "fmt"

// Mode specifies which definitions of a server's tools are accepted automatically. The zero value is [Review].
type Mode uint8

// These are the modes.
const (
	// Review accepts no definition automatically.
	Review Mode = iota
	// FirstUse accepts the definitions in the first whole list of a server.
	FirstUse
	// Off does not pin definitions. A tool may be called with any definition.
	Off
)

// Settings contains the configured settings of a server.
type Settings struct {
	Mode Mode
	// Trusted is true if the annotations of the server's tools are trusted.
	Trusted bool
	// ForEachPerson is true if each person uses a separate account of the server. Definitions that the server sends to the
	// account of a person are then not stored, because they can contain data of this person.
	ForEachPerson bool
}

// ParseMode returns the mode with the given name in the configuration.
func ParseMode(name string) (Mode, error) {
	switch name {
	case "first_use":
		return FirstUse, nil
	case "review":
		return Review, nil
	case "off":
		return Off, nil
	}
	return Review, fmt.Errorf("unknown pin mode %q: write first_use, review or off", name)
}
