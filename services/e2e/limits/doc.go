// Package limits runs a real mesh with stdio servers that try to exhaust the machine: tasks, memory, disk, inotify
// instances. Each attacker stops by itself at a few thousand tasks or a few hundred MiB.
package limits
