// Command release completes a release, after goreleaser has built the programs.
//
//	release packages DIST VERSION COMMIT DATE
//	release modules VERSION COMMIT DIRECTORY
//
// `release packages` writes DIST/release, which contains every file of the release. DIST contains what goreleaser built
// from the commit, and DATE is the time of the commit, in the format of RFC 3339.
//
// `release modules` writes the Go modules of a commit into a directory that the go command accepts as a module proxy
// (GOPROXY=file://DIRECTORY). The commit must be the one to which the version's tags point.
package main

import (
	"errors"
	"fmt"
	"os"
	"time"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	switch {
	case len(args) == 5 && args[0] == "packages":
		date, err := time.Parse(time.RFC3339, args[4])
		if err != nil {
			return err
		}
		return writePackages(args[1], build{version: args[2], commit: args[3], date: date})
	case len(args) == 4 && args[0] == "modules":
		return writeModules(args[1], args[2], args[3])
	default:
		return errors.New("usage: release packages DIST VERSION COMMIT DATE | release modules VERSION COMMIT DIRECTORY")
	}
}
