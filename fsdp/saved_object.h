// An object that a node of the autograd graph keeps from its forward to its backward: the one way in which anything but
// tensors and numbers passes through autograd here. The node owns it (shared), and it is read as the type that it was
// saved as. A node keeps one such object.
#pragma once

#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include <memory>
#include <stdexcept>
#include <utility>

namespace ghostshard::fsdp {

template <typename T>
struct SavedObject final : torch::CustomClassHolder {
  explicit SavedObject(std::shared_ptr<T> saved) : object(std::move(saved)) {}
  std::shared_ptr<T> object;
};

inline constexpr const char* kSavedObject = "object";

// An object that outlives the graph, for save_object(): not owned.
template <typename T>
std::shared_ptr<T> borrowed(T& object) {
  return {std::shared_ptr<void>(), &object};
}

template <typename T>
void save_object(torch::autograd::AutogradContext* context, std::shared_ptr<T> object) {
  context->saved_data[kSavedObject] = c10::IValue::make_capsule(c10::make_intrusive<SavedObject<T>>(std::move(object)));
}

// Null: none was saved, or it was forgotten. std::logic_error: what was saved is no T.
template <typename T>
std::shared_ptr<T> saved_object(const torch::autograd::AutogradContext* context) {
  const auto found = context->saved_data.find(kSavedObject);
  if (found == context->saved_data.end()) return nullptr;
  const auto capsule = found->second.toCapsule();
  const auto* holder = dynamic_cast<const SavedObject<T>*>(capsule.get());
  if (holder == nullptr) throw std::logic_error("an autograd node saved an object of another type than is read");
  return holder->object;
}

// The node's share of the object goes.
inline void forget_object(torch::autograd::AutogradContext* context) { context->saved_data.erase(kSavedObject); }

}  // namespace ghostshard::fsdp
