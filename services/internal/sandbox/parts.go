package sandbox

// exitLauncher is the exit code of the launcher if it could not start the program.
const exitLauncher = 126

// These are the parts of the rules that a report lists.
const (
	partFiles           = "files"
	partContents        = "contents of files"
	partMetadata        = "modes and times of files"
	partProcesses       = "processes"
	partSignals         = "signals"
	partTracing         = "tracing"
	partListing         = "the list of processes"
	partLimits          = "limits of processes"
	partPriorities      = "priorities of processes"
	partSockets         = "Unix sockets with a path"
	partAbstractSockets = "abstract Unix sockets"
	partNetwork         = "network"
	partInotify         = "the number of inotify instances"
	partTCP             = "TCP"
	partPrograms        = "programs"
	partDatagrams       = "UDP, Multipath TCP and other protocols"
)

// allParts returns all parts that must be enforced for the given rules.
func allParts(r *Rules) []string {
	all := []string{partFiles, partProcesses, partSockets, partAbstractSockets, partPrograms}
	if r.NoNetwork {
		all = append(all, partNetwork)
	}
	return all
}
